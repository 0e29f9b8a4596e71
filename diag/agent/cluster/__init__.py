"""Hubs of one job: digests go to the job hub, its verdict comes back, dumps fan out."""

import io
import os

import requests
import torch
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

PART = 128 * 1024


def make_session():
    retry = Retry(total=None, connect=3, read=3, status_forcelist=(500, 502, 503, 504), allowed_methods=None,
                  backoff_factor=0.5, backoff_max=15)
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=retry))
    return session


class Bucket:
    def __init__(self, name):
        self.base = f"{os.environ['BUCKET_ENDPOINT']}/{name}"
        self.session = make_session()

    def put_tensors(self, prefix, step, tensors):
        buf = io.BytesIO()
        torch.save(tensors, buf)
        data = buf.getbuffer()
        for n, at in enumerate(range(0, len(data), PART)):
            part = bytes(data[at:at + PART])
            self.session.put(f"{self.base}/{prefix}/step{step:06d}.{n:04d}", data=part, timeout=60).raise_for_status()
        return len(data)

"""One manifest of which nothing is wrong, and what people do to it, each with what `diag doctor --manifest`
says then."""

from __future__ import annotations

__all__ = ["RIGHT", "WRONG"]

# An Indexed Job of two nodes with four GPUs each, of which nothing is wrong.
RIGHT = """\
apiVersion: v1
kind: Service
metadata: {name: dpo}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {app: dpo}
---
apiVersion: batch/v1
kind: Job
metadata: {name: dpo}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  backoffLimit: 0
  template:
    metadata:
      labels: {app: dpo}
    spec:
      subdomain: dpo
      restartPolicy: Never
      shareProcessNamespace: true
      initContainers:
      - name: diag
        image: diag:0.1.0
        restartPolicy: Always
        args: [watch]
        env: [{name: DIAG_TOKEN, valueFrom: {secretKeyRef: {name: diag-token, key: token}}}]
        ports: [{name: diag-metrics, containerPort: 9095}]
        securityContext: {capabilities: {add: [SYS_PTRACE]}}
        resources: {limits: {memory: 2Gi}}
      containers:
      - name: trainer
        image: swift:4.6
        command: [bash, -c]
        args:
        - |
          megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --tensor_model_parallel_size 2 --output_dir /out
        env:
        - {name: NPROC_PER_NODE, value: "4"}
        - {name: NNODES, value: "2"}
        - name: NODE_RANK
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
        - {name: MASTER_ADDR, value: dpo-0.dpo}
        - {name: MASTER_PORT, value: "29500"}
        securityContext: {capabilities: {add: [IPC_LOCK]}}
        resources:
          limits:
            nvidia.com/gpu: 4
            rdma/hca_shared_devices_a: 1
            memory: 900Gi
        volumeMounts: [{name: shm, mountPath: /dev/shm}]
      volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]
"""

# (what is changed, status, finding id, what the line says, what its remedy says)
WRONG = {
    "two completions, one at a time": (
        [("  parallelism: 2\n", "")],
        "problem",
        "rendezvous-failure",
        "1 of 2 pods run at the same time (the default)",
        "parallelism: 2",
    ),
    "no completion index": (
        [("  completionMode: Indexed\n", "")],
        "problem",
        "hostname-resolution",
        "random names",
        "completionMode: Indexed",
    ),
    "no subdomain": (
        [("      subdomain: dpo\n", "")],
        "problem",
        "hostname-resolution",
        "without it dpo-0.dpo does not resolve",
        "subdomain: dpo",
    ),
    "a Service with a cluster address": (
        [("  clusterIP: None\n", "")],
        "problem",
        "hostname-resolution",
        "only a headless Service",
        "clusterIP: None",
    ),
    "a selector of another label": (
        [("  selector: {app: dpo}", "  selector: {app: dpo-job}")],
        "problem",
        "hostname-resolution",
        "selects no pod of Job/dpo",
        "selector: {app: dpo",
    ),
    "names only when ready": (
        [("  publishNotReadyAddresses: true\n", "")],
        "note",
        "hostname-resolution",
        "no DNS name before they are ready",
        "publishNotReadyAddresses: true",
    ),
    "names only when ready, and a readinessProbe": (
        [
            ("  publishNotReadyAddresses: true\n", ""),
            ("        image: swift:4.6", "        readinessProbe: {exec: {command: [ls]}}"),
        ],
        "problem",
        "hostname-resolution",
        "the readinessProbe delays",
        "publishNotReadyAddresses: true",
    ),
    "an address that no pod has": (
        [("value: dpo-0.dpo", "value: dpo-master-0.dpo")],
        "problem",
        "hostname-resolution",
        "no pod will be named dpo-master-0",
        "MASTER_ADDR: dpo-0.dpo",
    ),
    "a pod's bare name": (
        [("value: dpo-0.dpo", "value: dpo-0")],
        "problem",
        "hostname-resolution",
        "bare pod name",
        "MASTER_ADDR: dpo-0.dpo",
    ),
    "the Service's own name": (
        [("value: dpo-0.dpo", "value: dpo")],
        "problem",
        "hostname-resolution",
        "resolves to all of them",
        "MASTER_ADDR: dpo-0.dpo",
    ),
    "loopback": (
        [("value: dpo-0.dpo", "value: localhost")],
        "problem",
        "rendezvous-failure",
        "its own localhost",
        "MASTER_ADDR: dpo-0.dpo",
    ),
    "a Service in another namespace": (
        [
            (
                "metadata: {name: dpo}\nspec:\n  clusterIP",
                "metadata: {name: dpo, namespace: net}\nspec:\n  clusterIP",
            )
        ],
        "problem",
        "hostname-resolution",
        "it is in namespace net",
        "the same for both",
    ),
    "hostNetwork with the node's DNS": (
        [("      subdomain: dpo\n", "      subdomain: dpo\n      hostNetwork: true\n")],
        "problem",
        "hostname-resolution",
        "the node's own DNS",
        "dnsPolicy: ClusterFirstWithHostNet",
    ),
    "more ranks than GPUs": (
        [('NPROC_PER_NODE, value: "4"', 'NPROC_PER_NODE, value: "8"')],
        "problem",
        "launch-mismatch",
        "8 ranks (NPROC_PER_NODE) but 4 GPUs (nvidia.com/gpu: 4)",
        "nvidia.com/gpu: 8",
    ),
    "fewer ranks than GPUs": (
        [('NPROC_PER_NODE, value: "4"', 'NPROC_PER_NODE, value: "2"')],
        "problem",
        "launch-mismatch",
        "2 of 4 GPUs",
        "NPROC_PER_NODE: 4",
    ),
    "GPUs counted as on the node": (
        [("- {name: NNODES", '- {name: CUDA_VISIBLE_DEVICES, value: "4,5,6,7"}\n        - {name: NNODES')],
        "problem",
        "launch-mismatch",
        "counted from 0",
        "remove it",
    ),
    "more nodes than pods": (
        [('NNODES, value: "2"', 'NNODES, value: "4"')],
        "problem",
        "launch-mismatch",
        "4 nodes (NNODES), but Job/dpo makes 2 pods",
        "completions: 4",
    ),
    "nodes not given": (
        [('        - {name: NNODES, value: "2"}\n', "")],
        "problem",
        "launch-mismatch",
        "each of 2 pods would train on its own",
        '- {name: NNODES, value: "2"}',
    ),
    "one node rank for all": (
        [
            (
                """- name: NODE_RANK
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}""",
                '- {name: NODE_RANK, value: "0"}',
            )
        ],
        "problem",
        "launch-mismatch",
        "each of 2 pods would be node 0",
        "job-completion-index",
    ),
    "the pod's name as node rank": (
        [("metadata.annotations['batch.kubernetes.io/job-completion-index']", "metadata.name")],
        "problem",
        "launch-mismatch",
        "a pod name is not a number",
        "job-completion-index",
    ),
    "an index that is not filled in": (
        [
            (
                """valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}""",
                "value: $(JOB_COMPLETION_INDEX)",
            )
        ],
        "problem",
        "launch-mismatch",
        "is not expanded",
        "fieldRef",
    ),
    "a layout that does not divide": (
        [("--tensor_model_parallel_size 2", "--tensor_model_parallel_size 3")],
        "problem",
        "launch-mismatch",
        "TP 3",
        "multiple of 3",
    ),
    "no restartPolicy": (
        [("      restartPolicy: Never\n", "")],
        "problem",
        "restarted-after-success",
        "the default is Always",
        "restartPolicy: Never",
    ),
    "nothing on /dev/shm": (
        [("        volumeMounts: [{name: shm, mountPath: /dev/shm}]\n", "")],
        "problem",
        "shm-too-small",
        "64 MiB",
        "mountPath: /dev/shm",
    ),
    "a small /dev/shm": (
        [("sizeLimit: 64Gi", "sizeLimit: 64Mi")],
        "problem",
        "shm-too-small",
        "64Mi for 4 ranks",
        "sizeLimit: 64Gi",
    ),
    "/dev/shm larger than the limit": (
        [("sizeLimit: 64Gi", "sizeLimit: 1Ti")],
        "problem",
        "host-oom",
        "memory limit of 900Gi",
        "sizeLimit",
    ),
    "no right to lock memory": (
        [("        securityContext: {capabilities: {add: [IPC_LOCK]}}\n", "")],
        "problem",
        "memlock-limit",
        "IPC_LOCK is not",
        "add: [IPC_LOCK]",
    ),
    "IPC_LOCK for another user than root": (
        [("{capabilities: {add: [IPC_LOCK]}}", "{runAsUser: 1000, capabilities: {add: [IPC_LOCK]}}")],
        "note",
        "memlock-limit",
        "only to root's processes",
        "LimitMEMLOCK=infinity",
    ),
    "no RDMA device": (
        [("            rdma/hca_shared_devices_a: 1\n", "")],
        "problem",
        "ib-fallback",
        "NCCL uses TCP sockets",
        "add: [IPC_LOCK]",
    ),
    "a variable that switches RDMA off": (
        [("- {name: NNODES", '- {name: NCCL_IB_DISABLE, value: "1"}\n        - {name: NNODES')],
        "problem",
        "env-harmful",
        "NCCL_IB_DISABLE=1",
        "unset it",
    ),
    "a variable that nothing reads": (
        [("- {name: NNODES", '- {name: NCCL_TIMEOUT, value: "3600"}\n        - {name: NNODES')],
        "problem",
        "env-no-effect",
        "NCCL_TIMEOUT=3600",
        "ddp_timeout",
    ),
    "memory for no save": (
        [("memory: 900Gi", "memory: 70Gi")],
        "problem",
        "host-oom-forecast",
        "while it saves a checkpoint",
        "memory: ",
    ),
    "an init container that never ends": (
        [("        restartPolicy: Always\n", "")],
        "problem",
        "hang",
        "a deadlock",
        "restartPolicy: Always",
    ),
    "a probe of a port that listens on loopback": (
        [
            (
                "        ports: [{name: diag-metrics",
                "        startupProbe: {httpGet: {path: /healthz, port: diag-metrics}}\n        ports: [{name: diag-metrics",
            )
        ],
        "problem",
        "hang",
        "the trainer waits for it",
        "DIAG_HOST",
    ),
    "a sidecar that sees nobody": (
        [("      shareProcessNamespace: true\n", "")],
        "not checked",
        "",
        "sees only its own processes",
        "shareProcessNamespace: true",
    ),
    "a sidecar that may read no stack": (
        [("        securityContext: {capabilities: {add: [SYS_PTRACE]}}\n", "")],
        "not checked",
        "",
        "without SYS_PTRACE",
        "add: [SYS_PTRACE]",
    ),
    "a sidecar of another user": (
        [
            ("{capabilities: {add: [SYS_PTRACE]}}", "{runAsUser: 1000, capabilities: {add: [SYS_PTRACE]}}"),
            ("{capabilities: {add: [IPC_LOCK]}}", "{runAsUser: 0, capabilities: {add: [IPC_LOCK]}}"),
        ],
        "not checked",
        "",
        "diag runs as user 1000, the trainer as 0",
        "runAsUser: 0",
    ),
    "a sidecar without a limit": (
        [("        resources: {limits: {memory: 2Gi}}\n", "")],
        "note",
        "",
        "no memory limit of its own",
        "memory: 2Gi",
    ),
    "hubs that cannot join": (
        [
            (
                "        env: [{name: DIAG_TOKEN, valueFrom: {secretKeyRef: {name: diag-token, key: token}}}]\n",
                "",
            )
        ],
        "not checked",
        "",
        "judges only its own node",
        "DIAG_TOKEN",
    ),
}

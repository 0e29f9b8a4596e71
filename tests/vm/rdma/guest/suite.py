"""What the RDMA tests ask of the machine."""

from __future__ import annotations

from functools import partial

from tests.vm.guest.parts import Parts
from tests.vm.rdma.guest import network, parts
from tests.vm.rdma.guest.doctor import doctor
from tests.vm.rdma.guest.watched import watch
from tests.vm.rdma.scenarios import SCENARIOS

PARTS = Parts(
    first={
        "network": network.make,
        "machine": parts.machine,
        "ports": parts.ports,
        "processes": parts.processes,
        "containers": parts.containers,
        "traffic": parts.traffic,
        "doctor": doctor,
    },
    together={
        f"run:{scenario.name}": partial(watch, scenario) for scenario in SCENARIOS if not scenario.down
    },
    alone={
        f"run:{scenario.name}": partial(watch, scenario) for scenario in SCENARIOS if scenario.down
    },  # the cable is cut
)

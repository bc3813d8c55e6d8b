"""The engine of a device: its own methods, and the host's for everything else."""

from __future__ import annotations

from typing import Any

from streamkern.cpu.engine import HostEngine
from streamkern.engine.base import Imap, Map, TaskRunner
from streamkern.engine.device import Device
from streamkern.engine.reference import Engine, one_by_one
from streamkern.gpu.device_operations import OnDevice


class DeviceEngine(OnDevice, HostEngine):
    """Rows against centers on a device; matrices of the set-up on the host, except the factor of K(Z, Z).

    ``overlaps`` is ignored, because K(Z, Z) is on the device. If ``alone``, this process computes all blocks.
    """

    def __init__(
        self,
        device: Device,
        parallel: Map = one_by_one,
        imap: Imap | None = None,
        overlaps: bool = False,
        alone: bool = False,
    ) -> None:
        super().__init__(parallel, imap, overlaps=False)
        self.device: Device = device
        self.name = device.name
        self.host = HostEngine(parallel, imap)
        self.keeps_state = alone

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceEngine, (self.device,)

    def bound(self, executor: TaskRunner) -> Engine:
        return DeviceEngine(self.device, executor.host_map, executor.imap, alone=executor.in_process)

    def here(self) -> Engine:
        return DeviceEngine(self.device, self.parallel, alone=self.keeps_state)

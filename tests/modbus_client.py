"""A Modbus client on pymodbus, to read our simulator with a client that is not ours.

Usage: modbus_client.py PORT FRAMER, the framer being `socket` or `rtu`. Reads unit 1 three times and prints one JSON object a read.
"""

import json
import struct
import sys

from pymodbus import FramerType
from pymodbus.client import ModbusTcpClient


def read(client: ModbusTcpClient) -> dict:
    """One read of what `board-configs/sim/plant.yaml` describes."""
    inputs = client.read_input_registers(0, count=4, device_id=1).registers
    holding = client.read_holding_registers(104, count=2, device_id=1).registers
    temperature = client.read_holding_registers(102, count=1, device_id=1).registers
    voltage, current = struct.unpack(">ff", struct.pack(">4H", *inputs))
    return {
        "voltage_l1": voltage,
        "current_l1": current,
        "temperature": struct.unpack(">h", struct.pack(">H", *temperature))[0],
        "reading": struct.unpack(">I", struct.pack(">2H", *holding))[0],
        "running": client.read_coils(0, count=1, device_id=1).bits[0],
        "unknown": client.read_holding_registers(5000, count=1, device_id=1).exception_code,
    }


with ModbusTcpClient("127.0.0.1", port=int(sys.argv[1]), framer=FramerType(sys.argv[2])) as modbus:
    for _ in range(3):
        print(json.dumps(read(modbus)), flush=True)

"""A Modbus plant on pymodbus, so that nothing the tests compare with comes from our own encoder.

Usage: plant.py PORT FRAMER. Port 0 takes a free one; the framer is `socket` for Modbus TCP, or `rtu` for RTU frames
over TCP, as serial converters pass them on. Prints `listening PORT`; then obeys lines on standard input:

    freeze    the counter stays as it is from now on; prints `served N`, the last value that was read
    quit      ends (so does the end of standard input)

Units 1 and 3 are equal and count apart; `freeze` speaks of unit 1. Unit 2 takes requests and never answers.
Values are packed by Python's struct. Holding registers:

      0  u32  counter: 1 at the first read that covers it, one more with each further read
      2  f32  ramp: 10 + counter / 2
     10  f32  -1234.5625 four times: ABCD, CDAB, BADC, DCBA
     20  u32  305419896 (0x12345678) four times, in the same orders
     30  i16  -123
     31  u16  0x8201: bits 0, 9 and 15
     32  u64  12345678901234567890, ABCD
     36  f64  999999999.0 four times, in the same orders
     52  i64  -2, CDAB (the least significant word first)
     56  i32  -70000, ABCD
     60  text "Modbus ok", 10 bytes, the last one NUL

Input registers 11174, 11176 and 11177 hold 174, 176 and 177; there is no 11175 (field case A6).
Coils 0 to 15: 9 and 15 are on (field case A10). Discrete inputs 0 to 15: 0 and 2 are on.
"""

import asyncio
import struct
import sys

from pymodbus import FramerType
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

COUNTER_ADDRESS = 0
HOLDING_REGISTERS = 100
READ_HOLDING = 3


def words(data: bytes) -> list[int]:
    """The registers that hold these bytes."""
    return list(struct.unpack(f">{len(data) // 2}H", data))


def orders(form: str, value: float) -> list[int]:
    """A value in the four orders: ABCD, CDAB, BADC, DCBA."""
    big = words(struct.pack(f">{form}", value))
    swapped = [(word & 0xFF) << 8 | word >> 8 for word in big]
    return big + big[::-1] + swapped + swapped[::-1]


def holding() -> list[int]:
    """The holding registers before the first read."""
    registers = [0] * HOLDING_REGISTERS

    def put(address: int, values: list[int]) -> None:
        registers[address : address + len(values)] = values

    put(10, orders("f", -1234.5625))
    put(20, orders("I", 305419896))
    put(30, words(struct.pack(">h", -123)))
    put(31, [0x8201])
    put(32, words(struct.pack(">Q", 12345678901234567890)))
    put(36, orders("d", 999999999.0))
    put(52, words(struct.pack(">q", -2))[::-1])
    put(56, words(struct.pack(">i", -70000)))
    put(60, words(b"Modbus ok\0"))
    return registers


class Plant:
    """Counts the reads of the counter register."""

    def __init__(self) -> None:
        self.reads = 0
        self.frozen = False

    async def access(self, function, start, address, count, registers, values):
        """Called by pymodbus before each answer; changes what will be answered."""
        if function != READ_HOLDING or not address <= COUNTER_ADDRESS < address + count:
            return None
        if not self.frozen:
            self.reads += 1
        at = COUNTER_ADDRESS - start
        registers[at : at + 2] = words(struct.pack(">I", self.reads))
        registers[at + 2 : at + 4] = words(struct.pack(">f", 10 + self.reads / 2))
        return None

    def device(self, unit: int) -> SimDevice:
        """A unit with its four address spaces."""
        coils = [index in (9, 15) for index in range(16)]
        discretes = [index in (0, 2) for index in range(16)]
        register = DataType.REGISTERS
        blocks = (
            [SimData(0, values=coils, datatype=DataType.BITS)],
            [SimData(0, values=discretes, datatype=DataType.BITS)],
            [SimData(0, values=holding(), datatype=register)],
            [
                SimData(11174, values=174, datatype=register),
                SimData(11176, values=[176, 177], datatype=register),
            ],
        )
        return SimDevice(unit, simdata=blocks, action=self.access)


class Silent(Plant):
    """Never answers."""

    async def access(self, function, start, address, count, registers, values):
        await asyncio.Event().wait()


async def main() -> None:
    plant = Plant()
    units = [plant.device(1), Silent().device(2), Plant().device(3)]
    framer = FramerType(sys.argv[2])
    server = ModbusTcpServer(units, framer=framer, address=("127.0.0.1", int(sys.argv[1])))
    await server.serve_forever(background=True)
    print("listening", server.transport.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "freeze":
            plant.frozen = True
            print("served", plant.reads, flush=True)
        if line.strip() == "quit":
            break
    await server.shutdown()


asyncio.run(main())

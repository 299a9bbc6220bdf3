//! One unit's registers: what a read of them holds, and what it counts.
//!
//! Answers function codes 1 to 4 only, every other one with exception 01, in the order of checks
//! of the specification (Application Protocol V1.1b3, section 7 and the diagrams of section 6).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_modbus::{ExceptionCode, Request};

use super::ledger::{Ledger, Reply};
use super::words::{self, Number};
use super::{SimPoint, SimUnit};
use crate::south::generate::{CounterWave, Wave};
use crate::south::modbus::RegisterKind;

/// Registers that one request may read (section 6.3).
const REGISTERS_MAX: u16 = 125;
/// Bits that one request may read (section 6.1).
const BITS_MAX: u16 = 2000;

/// One unit's address spaces.
#[derive(Debug)]
pub(super) struct Unit {
    /// The points, and the ledger's index of those that count.
    points: Vec<(SimPoint, Option<usize>)>,
    /// Which point lies on an address, and which of its registers.
    addresses: BTreeMap<(RegisterKind, u16), (usize, u16)>,
}

impl Unit {
    /// Lays the points out and enters the counters into the ledger.
    pub(super) fn new(server: &str, unit: &SimUnit, ledger: &Mutex<Ledger>) -> Self {
        let mut image = Self { points: Vec::new(), addresses: BTreeMap::new() };
        for point in &unit.points {
            let counter = match &point.value {
                Wave::Counter(wave) => {
                    let wave = bounded(wave, point);
                    let id = unit.unit_id.get();
                    Some(lock(ledger).add(server, id, point.name.as_str(), wave))
                }
                _ => None,
            };
            for offset in 0..point.width() {
                let at = (point.register, point.address + offset);
                image.addresses.insert(at, (image.points.len(), offset));
            }
            image.points.push((point.clone(), counter));
        }
        image
    }

    /// The PDU of the reply to a request; what it counts is noted in `reply`.
    pub(super) fn answer(
        &self,
        pdu: &[u8],
        seconds: f64,
        ledger: &mut Ledger,
        reply: &mut Reply,
    ) -> Result<Vec<u8>, ExceptionCode> {
        if !matches!(pdu.first(), Some(1..=4)) {
            return Err(ExceptionCode::IllegalFunction);
        }
        let request = Request::try_from(bytes::Bytes::copy_from_slice(pdu))
            .map_err(|_| ExceptionCode::IllegalDataValue)?;
        let (kind, address, quantity) = match request {
            Request::ReadCoils(address, n) => (RegisterKind::Coil, address, n),
            Request::ReadDiscreteInputs(address, n) => (RegisterKind::Discrete, address, n),
            Request::ReadHoldingRegisters(address, n) => (RegisterKind::Holding, address, n),
            Request::ReadInputRegisters(address, n) => (RegisterKind::Input, address, n),
            _ => return Err(ExceptionCode::IllegalFunction),
        };
        let words = self.read(kind, (address, quantity), seconds, ledger, reply)?;
        let data: Vec<u8> = if kind.is_bits() {
            packed(&words)
        } else {
            words.into_iter().flat_map(u16::to_be_bytes).collect()
        };
        // 250 bytes at most, by the limits above.
        let count = u8::try_from(data.len()).unwrap_or(u8::MAX);
        Ok([&[pdu[0], count], &data[..]].concat())
    }

    /// The registers (or bits as 0 and 1) of one request.
    fn read(
        &self,
        kind: RegisterKind,
        (address, quantity): (u16, u16),
        seconds: f64,
        ledger: &mut Ledger,
        reply: &mut Reply,
    ) -> Result<Vec<u16>, ExceptionCode> {
        // The specification's order: quantity first (03), then the addresses (02).
        if quantity == 0 || quantity > if kind.is_bits() { BITS_MAX } else { REGISTERS_MAX } {
            return Err(ExceptionCode::IllegalDataValue);
        }
        let last = address.checked_add(quantity - 1).ok_or(ExceptionCode::IllegalDataAddress)?;
        let touched: Vec<_> = self.addresses.range((kind, address)..=(kind, last)).collect();
        if touched.len() != usize::from(quantity) {
            return Err(ExceptionCode::IllegalDataAddress);
        }
        let mut answer = Vec::with_capacity(touched.len());
        // The registers of one point are one value, taken at one moment.
        for registers in touched.chunk_by(|a, b| a.1.0 == b.1.0) {
            let (point, counter) = &self.points[registers[0].1.0];
            let whole = registers.len() == usize::from(point.width());
            let number = match (&point.value, counter) {
                (_, Some(counter)) if whole => Number::Whole(ledger.take(*counter, reply)),
                (_, Some(counter)) => Number::Whole(ledger.peek(*counter)),
                (wave, None) => Number::Real(real(wave, seconds) / point.scale.unwrap_or(1.0)),
            };
            let words = words::encode(point.effective_type(), point.order, number);
            answer.extend(registers.iter().map(|(_, (_, offset))| words[usize::from(*offset)]));
        }
        Ok(answer)
    }
}

/// The count may be wrong by one after a panic elsewhere; the simulator goes on.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bits by eight, the first in the least significant place (section 6.1).
fn packed(bits: &[u16]) -> Vec<u8> {
    let byte = |bits: &[u16]| {
        bits.iter().enumerate().fold(0, |byte, (n, bit)| byte | u8::from(*bit != 0) << n)
    };
    bits.chunks(8).map(byte).collect()
}

/// A counter that begins anew before its registers overflow, so that each value served is the
/// value counted.
fn bounded(wave: &CounterWave, point: &SimPoint) -> CounterWave {
    let room = words::counter_max(point.effective_type()).saturating_sub(wave.start);
    let modulo = wave.modulo.or_else(|| room.checked_add(1));
    CounterWave { start: wave.start, modulo }
}

fn real(wave: &Wave, seconds: f64) -> f64 {
    match wave {
        Wave::Constant(value) => *value,
        Wave::Sine(sine) => sine.at(seconds),
        Wave::Ramp(ramp) => ramp.at(seconds),
        Wave::Counter(_) | Wave::Choice(_) => unreachable!("counted, or refused at the check"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of section 6.1: coils 20 to 38 as CD 6B 05.
    #[test]
    fn bits_are_packed_as_in_the_specification() {
        let bits = [1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1];
        assert_eq!(packed(&bits), [0xCD, 0x6B, 0x05]);
    }
}

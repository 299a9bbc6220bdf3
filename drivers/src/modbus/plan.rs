//! Which requests read a device's points: pure, decided by the configuration and the learnt holes.
//!
//! Points of one register kind are merged into blocks up to the device's limits, over gaps up to
//! `max_gap`. A point is never cut, the top of the address space is legal, and what a device has
//! refused to read is planned around. Knows no I/O and no values.

use std::fmt;

use crate::south::modbus::{ModbusDevice, ModbusPoint, RegisterKind, ValueType};

/// Addresses of one register kind: 0 to 65,535 (specification, section 4.4).
pub const ADDRESSES: u32 = 65_536;
/// Registers that one request may read (specification, sections 6.3 and 6.4).
pub const REGISTERS_MAX: u16 = 125;
/// Bits that one request may read (specification, sections 6.1 and 6.2).
pub const BITS_MAX: u16 = 2000;

/// One request: a run of registers or bits, and the points that lie in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The address space.
    pub kind: RegisterKind,
    /// The first address.
    pub start: u16,
    /// Registers, or bits for coils and discrete inputs; at least 1.
    pub quantity: u16,
    /// Indices into [`ModbusDevice::points`], by rising address.
    pub points: Vec<usize>,
}

impl Block {
    /// The first address behind the block.
    pub fn end(&self) -> u32 {
        u32::from(self.start) + u32::from(self.quantity)
    }
}

/// Addresses that a device refused to read. A hole without a `quantity` lies between two
/// addresses: what is before and behind it can be read, but not in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hole {
    /// The address space.
    pub kind: RegisterKind,
    /// The first refused address.
    pub address: u16,
    /// How many addresses; 0 where only a request across `address` is refused.
    pub quantity: u16,
}

impl Hole {
    fn overlaps(self, kind: RegisterKind, start: u32, end: u32) -> bool {
        let from = u32::from(self.address);
        self.kind == kind && from < end && start < from + u32::from(self.quantity)
    }

    /// True where a request that reads up to `end` and goes on at `start` would touch the hole.
    fn parts(self, kind: RegisterKind, end: u32, start: u32) -> bool {
        let from = u32::from(self.address);
        let cut = self.quantity == 0 && self.kind == kind && end <= from && from <= start;
        cut || self.overlaps(kind, end, start)
    }
}

impl fmt::Display for Hole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name();
        match self.quantity {
            0 => {
                write!(f, "{kind} {} cannot be read in one request with those before", self.address)
            }
            1 => write!(f, "{kind} {} cannot be read", self.address),
            n => {
                let last = u32::from(self.address) + u32::from(n) - 1;
                write!(f, "{kind} {} to {last} cannot be read", self.address)
            }
        }
    }
}

impl ModbusPoint {
    /// Registers that the point covers, or 1 for a bit; 0 where a needed `length` is missing.
    pub fn quantity(&self) -> u16 {
        if self.register.is_bits() {
            return 1;
        }
        match self.effective_type() {
            ValueType::Bool
            | ValueType::I8
            | ValueType::U8
            | ValueType::I16
            | ValueType::U16
            | ValueType::F16
            | ValueType::Bcd16 => 1,
            ValueType::I32 | ValueType::U32 | ValueType::F32 | ValueType::Bcd32 => 2,
            ValueType::I64 | ValueType::U64 | ValueType::F64 => 4,
            ValueType::String | ValueType::Bytes => self.length.unwrap_or(0),
        }
    }

    /// The first address behind the point.
    pub(crate) fn end(&self) -> u32 {
        u32::from(self.address) + u32::from(self.quantity())
    }
}

/// Plans the requests of one cycle. Points that cannot be read at all (see
/// [`ModbusDevice::problems`]) are left out.
pub fn plan(device: &ModbusDevice) -> Vec<Block> {
    plan_around(device, &[])
}

/// The number of requests that one cycle of `device` takes, before anything is learnt about it.
pub fn requests_per_cycle(device: &ModbusDevice) -> usize {
    plan(device).len()
}

/// Plans around what the device has refused. A point that lies in a hole gets a block of its own,
/// so that it can be probed without harm to others.
pub fn plan_around(device: &ModbusDevice, holes: &[Hole]) -> Vec<Block> {
    let mut order: Vec<usize> = (0..device.points.len())
        .filter(|i| {
            let point = &device.points[*i];
            point.quantity() > 0
                && point.end() <= ADDRESSES
                && point.quantity() <= device.limit(point.register)
        })
        .collect();
    order.sort_by_key(|i| (device.points[*i].register, device.points[*i].address, *i));
    let mut blocks: Vec<Block> = Vec::new();
    for index in order {
        let point = &device.points[index];
        if let Some(block) = blocks.last_mut()
            && let Some(quantity) = extended(device, holes, block, point)
        {
            block.quantity = quantity;
            block.points.push(index);
        } else {
            blocks.push(Block {
                kind: point.register,
                start: point.address,
                quantity: point.quantity(),
                points: vec![index],
            });
        }
    }
    blocks
}

/// The block's quantity with `point` in it, or `None` where the point needs another block.
fn extended(
    device: &ModbusDevice,
    holes: &[Hole],
    block: &Block,
    point: &ModbusPoint,
) -> Option<u16> {
    let (kind, start) = (point.register, u32::from(point.address));
    if block.kind != kind || start > block.end() + u32::from(device.max_gap) {
        return None;
    }
    let end = block.end().max(point.end());
    let refused = |from: u32, to: u32| holes.iter().any(|hole| hole.overlaps(kind, from, to));
    // A refused span is read alone; only points inside it, such as its bits, share the request.
    if end > block.end()
        && (refused(u32::from(block.start), block.end()) || refused(start, point.end()))
    {
        return None;
    }
    if start >= block.end() && holes.iter().any(|hole| hole.parts(kind, block.end(), start)) {
        return None;
    }
    let quantity = u16::try_from(end - u32::from(block.start)).ok()?;
    (quantity <= device.limit(kind)).then_some(quantity)
}

/// Splits a block that was refused, at the gap nearest to its middle, or where there is no gap
/// between two points. `None` where its points cannot be read apart. The hole is what lies
/// between the halves: it is the culprit if both halves can be read.
pub fn split(device: &ModbusDevice, block: &Block) -> Option<(Block, Block, Hole)> {
    let middle = block.points.len() / 2;
    let mut end = 0;
    let mut best: Option<(bool, usize, usize)> = None;
    for (at, index) in block.points.iter().enumerate() {
        let point = &device.points[*index];
        let start = u32::from(point.address);
        if at > 0 && start >= end {
            let candidate = (start == end, at.abs_diff(middle), at);
            best = Some(best.map_or(candidate, |b| b.min(candidate)));
        }
        end = end.max(point.end());
    }
    let (_, _, at) = best?;
    let (left, right) = block.points.split_at(at);
    let left = block_of(device, block.kind, left)?;
    let right = block_of(device, block.kind, right)?;
    let gap = u16::try_from(u32::from(right.start) - left.end()).ok()?;
    let address = if gap == 0 { right.start } else { u16::try_from(left.end()).ok()? };
    let hole = Hole { kind: block.kind, address, quantity: gap };
    Some((left, right, hole))
}

/// The smallest block that holds `points`, which are sorted by address.
fn block_of(device: &ModbusDevice, kind: RegisterKind, points: &[usize]) -> Option<Block> {
    let start = device.points[*points.first()?].address;
    let end = points.iter().map(|i| device.points[*i].end()).max()?;
    let quantity = u16::try_from(end - u32::from(start)).ok()?;
    Some(Block { kind, start, quantity, points: points.to_vec() })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

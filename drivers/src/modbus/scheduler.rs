//! One device's poll cycle as a state machine: which request is next, what an answer means, and
//! the row at the end. No I/O, no clock: instants are handed in.
//!
//! A block that a device refuses is split until the culprit is found and remembered; what stays
//! refused, a block that is never answered, and a unit that is silent while others on the link
//! answer, are asked again at growing intervals. Bytes of a cycle are kept until its row is written
//! at once, so a cancelled read leaves no half row.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::decode::PointDecoder;
use crate::modbus::frame::ReadRequest;
use crate::modbus::plan::{Block, Hole, plan_around, split};
use crate::modbus::quiet::QuietBlocks;
use crate::modbus::transaction::{Exception, Failure};
use crate::south::modbus::ModbusDevice;
use crate::table::{Reason, TableBuilder};

/// First pause before a refused block is asked for again, and the longest one.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED_PAUSE_MAX: Duration = Duration::from_mins(5);
/// Requests without an answer in a row, after which the rest of a cycle is given up.
const TIMEOUTS_MAX: u32 = 2;
/// Cycles without any answer after which a unit is demoted while others on its link answer.
const SILENT_CYCLES: u32 = 2;
/// When no other unit has answered for so long, there is nobody to be spared.
const ALONE_AFTER: Duration = Duration::from_secs(10);
/// A demoted unit takes at most one part in so many of the link's time.
const SILENT_SHARE: u32 = 10;
/// Longest pause between two probes of a demoted unit, unless its timeout asks for more.
const SILENT_PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a point has in the cycle under way.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Failed(Reason),
    /// Where the point's registers start in the cycle's bytes.
    Registers(u32),
    Bit(bool),
}

/// A request that is still to be made in this cycle.
#[derive(Debug)]
enum Work {
    /// A block of the plan, by index.
    Planned(usize),
    /// A part of a refused block, and the split that it came from.
    Part(Block, usize),
}

impl Work {
    fn block<'a>(&'a self, plan: &'a [Block]) -> &'a Block {
        match self {
            Self::Planned(index) => &plan[*index],
            Self::Part(block, _) => block,
        }
    }
}

/// A refused block that was split in this cycle.
#[derive(Debug)]
struct Split {
    between: Hole,
    /// Both parts could be read so far.
    whole: bool,
}

/// A block that is not asked for in each cycle.
#[derive(Debug)]
struct Refusal {
    block: Block,
    exception: Exception,
    pause: Duration,
    due: Instant,
}

impl Refusal {
    fn is_for(&self, block: &Block) -> bool {
        (self.block.kind, self.block.start, self.block.quantity)
            == (block.kind, block.start, block.quantity)
    }
}

/// A unit that answers nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Silent {
    /// For so many cycles in which it was asked.
    cycles: u32,
    /// Others on the link answer, and wait for its deadlines.
    harms: bool,
}

/// What a cycle came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing could be asked: there is no row.
    NoLink,
    /// The row's instant.
    Row(Instant),
}

/// The poll cycle of one device.
#[derive(Debug)]
pub(crate) struct Scheduler {
    device: ModbusDevice,
    decoders: Vec<PointDecoder>,
    plan: Vec<Block>,
    holes: Vec<Hole>,
    refusals: Vec<Refusal>,
    quiet: QuietBlocks,
    slots: Vec<Slot>,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
    work: Vec<Work>,
    splits: Vec<Split>,
    /// The plan does not fit what was learnt.
    replan: bool,
    /// Where the next cycle starts in the plan.
    first: usize,
    answered: Option<Instant>,
    link_failed: bool,
    timeouts: u32,
    silent: Silent,
    /// When the last two cycles in which the unit was asked began.
    asked: [Option<Instant>; 2],
    /// Since when no cycle has brought any answer.
    unheard: Option<Instant>,
    /// Why values are missing while the unit is silent.
    silence: Reason,
    /// When a demoted unit is asked again, and the pause after that.
    probe: Option<(Instant, Duration)>,
    /// The last cycle changed what is known about the device.
    learnt: bool,
    /// The first failure of the cycle, in words.
    error: Option<String>,
}

impl Scheduler {
    /// Plans the cycle of `device`, which has no problems.
    pub(crate) fn new(device: ModbusDevice) -> Self {
        let plan = plan_around(&device, &[]);
        let decoders = device.points.iter().map(|p| PointDecoder::new(p, device.order)).collect();
        let slots = vec![Slot::Failed(Reason::Missing); device.points.len()];
        Self {
            device,
            decoders,
            plan,
            holes: Vec::new(),
            refusals: Vec::new(),
            quiet: QuietBlocks::default(),
            slots,
            bytes: Vec::new(),
            scratch: Vec::new(),
            work: Vec::new(),
            splits: Vec::new(),
            replan: false,
            first: 0,
            answered: None,
            link_failed: false,
            timeouts: 0,
            silent: Silent::default(),
            asked: [None; 2],
            unheard: None,
            silence: Reason::Timeout,
            probe: None,
            learnt: false,
            error: None,
        }
    }

    /// What the device has refused to read, in the order of addresses.
    pub(crate) fn holes(&self) -> &[Hole] {
        &self.holes
    }

    /// True where the last cycle changed [`Scheduler::holes`].
    pub(crate) fn learnt(&self) -> bool {
        self.learnt
    }

    /// True while the unit has answered nothing for at least one whole cycle.
    pub(crate) fn is_silent(&self) -> bool {
        self.unheard.is_some()
    }

    /// True where nothing is gained by asking again what the last cycle asked: each point was read,
    /// or the device refuses it for good.
    pub(crate) fn is_settled(&self) -> bool {
        use Reason::{IllegalAddress, IllegalFunction, IllegalValue};
        let refused = |r: &Reason| matches!(r, IllegalFunction | IllegalAddress | IllegalValue);
        self.slots.iter().all(|slot| match slot {
            Slot::Failed(reason) => refused(reason),
            Slot::Registers(_) | Slot::Bit(_) => true,
        })
    }

    /// The first failure of the last cycle, in words.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Starts a cycle. `others` is when another unit on the link answered last.
    pub(crate) fn start(&mut self, now: Instant, others: Option<Instant>) {
        self.bytes.clear();
        self.work.clear();
        self.splits.clear();
        self.slots.fill(Slot::Failed(Reason::Missing));
        (self.answered, self.link_failed, self.timeouts, self.error) = (None, false, 0, None);
        if others.is_none_or(|at| now.saturating_duration_since(at) >= ALONE_AFTER) {
            self.probe = None;
        }
        if self.probe.is_some_and(|(due, _)| now < due) {
            self.slots.fill(Slot::Failed(self.silence));
            self.error = Some(self.demoted());
            return;
        }
        self.asked = [self.asked[1], Some(now)];
        let count = self.plan.len();
        for step in (0..count).rev() {
            let index = (self.first + step) % count;
            let block = &self.plan[index];
            let refusal = self.refusals.iter().find(|r| r.is_for(block) && now < r.due);
            let (reason, why) = if let Some(refusal) = refusal {
                (refusal.exception.reason(), refusal.exception.to_string())
            } else if let Some(pause) = self.quiet.rests(block, now) {
                let why = format!("no reply; it is asked for every {pause:?} until there is one");
                (Reason::Timeout, why)
            } else {
                self.work.push(Work::Planned(index));
                continue;
            };
            let device = &self.device;
            self.error.get_or_insert_with(|| describe(device, block, &why));
            for point in &block.points {
                self.slots[*point] = Slot::Failed(reason);
            }
        }
    }

    /// The next request; the same one until it is answered. `None` at the cycle's end.
    pub(crate) fn next_request(&self) -> Option<ReadRequest> {
        let block = self.work.last()?.block(&self.plan);
        Some(ReadRequest {
            unit: self.device.unit_id.get(),
            kind: block.kind,
            start: block.start,
            quantity: block.quantity,
        })
    }

    /// Takes the answer to [`Scheduler::next_request`]: its data bytes and when it came, or why
    /// there is none.
    pub(crate) fn answer(&mut self, outcome: Result<(&[u8], Instant), Failure>, now: Instant) {
        let Some(work) = self.work.pop() else { return };
        let silent = outcome.as_ref().err().filter(|f| f.is_silence()).map(Failure::reason);
        if silent.is_none() && !matches!(outcome, Err(Failure::Link(_))) {
            self.timeouts = 0;
            self.answered = Some(now);
            let block = work.block(&self.plan);
            self.quiet.heard(block);
        }
        match outcome {
            Ok((data, arrived)) => {
                self.answered = Some(arrived);
                self.take(&work, data);
            }
            Err(Failure::Exception(exception @ Exception(0x01..=0x03))) => {
                self.refused(&work, exception, now);
            }
            Err(failure) => {
                self.inconclusive(&work);
                self.fail(&work, &failure);
                if let Some(reason) = silent {
                    self.timeouts += 1;
                    self.silence = reason;
                    if let (Failure::Timeout(_), Work::Planned(index)) = (&failure, &work) {
                        self.quiet.missed(&self.plan[*index]);
                    }
                    let was_silent = self.silent.harms && self.answered.is_none();
                    if was_silent || self.timeouts >= TIMEOUTS_MAX {
                        // Starts with another block next time, so that one which is never
                        // answered does not hide the others.
                        self.first = (self.first + 1) % self.plan.len().max(1);
                        self.give_up(&failure);
                    }
                } else if matches!(failure, Failure::Link(_)) {
                    self.link_failed = true;
                    self.give_up(&failure);
                }
            }
        }
    }

    /// Keeps the data of a reply.
    fn take(&mut self, work: &Work, data: &[u8]) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(data);
        let block = work.block(&self.plan);
        for index in &block.points {
            let offset = usize::from(self.device.points[*index].address - block.start);
            self.slots[*index] = if block.kind.is_bits() {
                // The first bit is the least significant of the first byte (specification 6.1).
                Slot::Bit(data[offset / 8] >> (offset % 8) & 1 == 1)
            } else {
                let at = u32::try_from(base + 2 * offset);
                Slot::Registers(at.unwrap_or_else(|_| unreachable!("four address spaces")))
            };
        }
        if !self.refusals.is_empty() {
            // It can be read again: forget that it could not.
            let refused = self.refusals.len();
            self.refusals.retain(|r| !r.is_for(block));
            if refused != self.refusals.len() {
                self.replan = true;
                let span = (block.kind, block.start, block.quantity);
                self.holes.retain(|h| (h.kind, h.address, h.quantity) != span);
            }
        }
    }

    /// The device says that the block cannot be read: finds out which part of it.
    fn refused(&mut self, work: &Work, exception: Exception, now: Instant) {
        self.inconclusive(work);
        let block = work.block(&self.plan).clone();
        // 01 speaks of the function, not of addresses.
        if exception.0 != 0x01
            && let Some((left, right, between)) = split(&self.device, &block)
        {
            let parent = self.splits.len();
            self.splits.push(Split { between, whole: true });
            self.work.push(Work::Part(right, parent));
            self.work.push(Work::Part(left, parent));
            return;
        }
        self.fail(work, &Failure::Exception(exception));
        if exception.0 != 0x01 {
            let hole = Hole { kind: block.kind, address: block.start, quantity: block.quantity };
            self.learn(hole);
        }
        match self.refusals.iter_mut().find(|r| r.is_for(&block)) {
            Some(refusal) => {
                refusal.pause = refusal.pause.saturating_mul(2).min(REFUSED_PAUSE_MAX);
                refusal.exception = exception;
                refusal.due = now + refusal.pause;
            }
            None => self.refusals.push(Refusal {
                block,
                exception,
                pause: REFUSED_PAUSE,
                due: now + REFUSED_PAUSE,
            }),
        }
    }

    fn learn(&mut self, hole: Hole) {
        if let Err(at) = self.holes.binary_search(&hole) {
            self.holes.insert(at, hole);
            self.replan = true;
        }
    }

    /// A part that failed says nothing about what lies between it and its sibling.
    fn inconclusive(&mut self, work: &Work) {
        if let Work::Part(_, parent) = work {
            self.splits[*parent].whole = false;
        }
    }

    fn fail(&mut self, work: &Work, failure: &Failure) {
        let block = work.block(&self.plan);
        let reason = failure.reason();
        for point in &block.points {
            self.slots[*point] = Slot::Failed(reason);
        }
        let device = &self.device;
        self.error.get_or_insert_with(|| describe(device, block, failure));
    }

    /// Fails what is left of the cycle.
    fn give_up(&mut self, failure: &Failure) {
        while let Some(work) = self.work.pop() {
            self.inconclusive(&work);
            self.fail(&work, failure);
        }
    }

    /// Ends the cycle: writes its row, learns from it and plans anew. `others` is when another unit
    /// on the link answered last.
    pub(crate) fn finish(
        &mut self,
        rows: &mut TableBuilder,
        now: Instant,
        others: Option<Instant>,
    ) -> Outcome {
        self.demote(now, others);
        self.quiet.end_cycle(self.answered.is_some(), self.device.timeout.duration(), now);
        let learnt: Vec<Hole> =
            self.splits.drain(..).filter(|s| s.whole).map(|s| s.between).collect();
        for hole in learnt {
            self.learn(hole);
        }
        let outcome = if self.link_failed && self.answered.is_none() {
            Outcome::NoLink
        } else {
            let arrived = self.answered.unwrap_or(now);
            self.write(rows, arrived);
            Outcome::Row(arrived)
        };
        self.learnt = std::mem::take(&mut self.replan);
        if self.learnt {
            self.plan = plan_around(&self.device, &self.holes);
            self.first = 0;
            let plan = &self.plan;
            self.refusals.retain(|r| plan.iter().any(|b| r.is_for(b)));
            self.quiet.keep(plan);
        }
        outcome
    }

    fn write(&mut self, rows: &mut TableBuilder, arrived: Instant) {
        rows.begin();
        for (column, slot) in self.slots.iter().enumerate() {
            match *slot {
                Slot::Failed(reason) => rows.fail(column, reason),
                Slot::Bit(bit) => self.decoders[column].decode_bit(bit, column, rows),
                Slot::Registers(at) => {
                    let (decoder, at) = (&self.decoders[column], at as usize);
                    let registers = &self.bytes[at..at + decoder.len()];
                    decoder.decode(registers, column, rows, &mut self.scratch);
                }
            }
        }
        rows.end(arrived);
    }

    /// Decides when a unit that did not answer at all is asked again: seldom, where that is at the
    /// cost of another unit that lives, and else in each cycle.
    fn demote(&mut self, now: Instant, others: Option<Instant>) {
        let asked = self.timeouts > 0;
        if self.answered.is_some() {
            (self.unheard, self.silent, self.probe) = (None, Silent::default(), None);
            return;
        }
        // A cycle in which a demoted unit was not asked says nothing new.
        if !asked {
            return;
        }
        self.unheard.get_or_insert(now);
        if self.link_failed {
            return;
        }
        self.silent.cycles = self.silent.cycles.saturating_add(1);
        // The requests of others were served between this unit's, or wait behind them.
        self.silent.harms = others.is_some_and(|at| self.asked[0].is_none_or(|asked| at >= asked));
        if !self.silent.harms {
            self.probe = None;
        } else if self.silent.cycles >= SILENT_CYCLES {
            let first = self.device.timeout.duration().saturating_mul(SILENT_SHARE);
            let longest = SILENT_PAUSE_MAX.max(first);
            let pause = self.probe.map_or(first, |(_, pause)| pause.saturating_mul(2));
            let pause = pause.min(longest);
            self.probe = Some((now + pause, pause));
        }
    }

    fn demoted(&self) -> String {
        let pause = self.probe.map_or(Duration::ZERO, |(_, pause)| pause);
        format!(
            "unit {} does not answer; it is asked every {pause:?} until it does, so that the \
             others on the link keep their rate",
            self.device.unit_id
        )
    }
}

/// Says what failed and which points it concerns.
fn describe(device: &ModbusDevice, block: &Block, failure: &dyn fmt::Display) -> String {
    let kind = block.kind.name();
    let place = match block.quantity {
        1 => format!("{kind} {}", block.start),
        _ => format!("{kind} {} to {}", block.start, block.end() - 1),
    };
    let first = block.points.first().map_or("", |p| device.points[*p].name.as_str());
    match block.points.len() {
        0 | 1 => format!("{place} ({first}): {failure}"),
        n => format!("{place} ({first} and {} more): {failure}", n - 1),
    }
}

//! Blocks that are never answered on a device that answers otherwise.
//!
//! Some devices say nothing, instead of exception 02, to what they do not have; such a block would
//! cost a deadline in each cycle. It is asked less and less often until it is answered. Knows only
//! what was missed: whether a whole unit is silent is the scheduler's question.

use std::time::Duration;

use tokio::time::Instant;

use super::plan::Block;
use crate::south::modbus::RegisterKind;

/// Cycles in a row without an answer after which a block rests. More than for a unit: a line that
/// loses one reply in ten must not cost a block its next ten seconds.
const MISSED_CYCLES: u32 = 5;
/// A block takes at most one part in so many of the time.
const SHARE: u32 = 10;
/// Longest pause, unless the timeout asks for more.
const PAUSE_MAX: Duration = Duration::from_secs(30);

type Span = (RegisterKind, u16, u16);

fn span(block: &Block) -> Span {
    (block.kind, block.start, block.quantity)
}

#[derive(Debug)]
struct Quiet {
    span: Span,
    /// Cycles in a row in which it was asked for and others were answered, but not it.
    cycles: u32,
    /// Missed in the cycle under way.
    missed: bool,
    /// When it is asked again, and the pause after that.
    rest: Option<(Instant, Duration)>,
}

/// The blocks of one device that were not answered lately.
#[derive(Debug, Default)]
pub(crate) struct QuietBlocks(Vec<Quiet>);

impl QuietBlocks {
    /// The pause that `block` has at `now`, if it is not to be asked for.
    pub(crate) fn rests(&self, block: &Block, now: Instant) -> Option<Duration> {
        let quiet = self.0.iter().find(|quiet| quiet.span == span(block))?;
        quiet.rest.filter(|(due, _)| now < *due).map(|(_, pause)| pause)
    }

    /// `block` was not answered in this cycle.
    pub(crate) fn missed(&mut self, block: &Block) {
        let span = span(block);
        match self.0.iter_mut().find(|quiet| quiet.span == span) {
            Some(quiet) => quiet.missed = true,
            None => self.0.push(Quiet { span, cycles: 0, missed: true, rest: None }),
        }
    }

    /// `block` was answered: whatever was known is forgotten.
    pub(crate) fn heard(&mut self, block: &Block) {
        self.0.retain(|quiet| quiet.span != span(block));
    }

    /// Ends a cycle. Where the unit has `answered` nothing, no block is to blame.
    pub(crate) fn end_cycle(&mut self, answered: bool, timeout: Duration, now: Instant) {
        let first = timeout.saturating_mul(SHARE);
        for quiet in &mut self.0 {
            if !std::mem::take(&mut quiet.missed) || !answered {
                continue;
            }
            quiet.cycles = quiet.cycles.saturating_add(1);
            if quiet.cycles >= MISSED_CYCLES {
                let pause = quiet.rest.map_or(first, |(_, pause)| pause.saturating_mul(2));
                let pause = pause.min(PAUSE_MAX.max(first));
                quiet.rest = Some((now + pause, pause));
            }
        }
    }

    /// Forgets what is in no block of `plan`.
    pub(crate) fn keep(&mut self, plan: &[Block]) {
        self.0.retain(|quiet| plan.iter().any(|block| span(block) == quiet.span));
    }
}

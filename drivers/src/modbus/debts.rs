//! What the units on a serial line may still answer, so that no late reply becomes a value.
//!
//! An RTU frame has no id: a late reply of the same unit to the same function looks like the reply
//! that is waited for. But a unit answers in the order in which it was asked. So a function that a
//! unit owes a reply to is not used again before the unit has answered something newer: a *probe*
//! with another read function, whose reply cannot be mistaken, and whose data nobody uses. Knows
//! frames' units and functions, and no bytes or time.

use std::collections::BTreeMap;

use crate::modbus::frame::{EXCEPTION_BIT, ReadRequest};
use crate::south::modbus::RegisterKind;

/// Requests without a reply that are remembered for each unit, the youngest ones.
const DEBTS_MAX: usize = 8;
/// Requests in a row to which a unit said nothing at all, after which it is not expected to answer
/// any but the last: it is switched off, or does not answer unknown functions.
const SILENT_MAX: u32 = 3;

/// What one unit owes.
#[derive(Debug, Default)]
struct Debt {
    /// Functions that were asked and not answered, oldest first.
    functions: Vec<u8>,
    /// Requests in a row without any frame from the unit.
    silent: u32,
}

/// What all units of a line owe.
#[derive(Debug, Default)]
pub(crate) struct Debts(BTreeMap<u8, Debt>);

impl Debts {
    /// True where a reply of `unit` to `function` may belong to an earlier request.
    pub(crate) fn owes(&self, unit: u8, function: u8) -> bool {
        self.0.get(&unit).is_some_and(|debt| debt.functions.contains(&function))
    }

    /// True where `unit` owes anything.
    pub(crate) fn owes_any(&self, unit: u8) -> bool {
        self.0.get(&unit).is_some_and(|debt| !debt.functions.is_empty())
    }

    /// A request to the same unit whose reply cannot be mistaken for one to `request`, nor, where
    /// that is possible, for one that is owed.
    pub(crate) fn probe(&self, request: ReadRequest) -> ReadRequest {
        use RegisterKind::{Coil, Discrete, Holding, Input};
        // First the function that devices without the register at hand refuse most politely.
        let others = match request.kind {
            Holding => [Input, Coil, Discrete],
            Input => [Holding, Discrete, Coil],
            Coil => [Discrete, Holding, Input],
            Discrete => [Coil, Input, Holding],
        };
        let free = others.into_iter().find(|k| !self.owes(request.unit, k.read_function()));
        ReadRequest { kind: free.unwrap_or(others[0]), quantity: 1, ..request }
    }

    /// A frame of `unit` with `function` came. True where it pays a debt: it belongs to the oldest
    /// request that it can belong to, and what was asked before that will not be answered any more.
    pub(crate) fn heard(&mut self, unit: u8, function: u8) -> bool {
        let Some(debt) = self.0.get_mut(&unit) else { return false };
        debt.silent = 0;
        let function = function & !EXCEPTION_BIT;
        let Some(at) = debt.functions.iter().position(|f| *f == function) else { return false };
        debt.functions.drain(..=at);
        true
    }

    /// `unit` answered the last request: it owes nothing.
    pub(crate) fn paid(&mut self, unit: u8) {
        self.0.remove(&unit);
    }

    /// `unit` did not answer `function` in time; `silent` where no frame of it came meanwhile.
    pub(crate) fn missed(&mut self, unit: u8, function: u8, silent: bool) {
        let debt = self.0.entry(unit).or_default();
        debt.silent = if silent { debt.silent.saturating_add(1) } else { 0 };
        if debt.silent >= SILENT_MAX {
            debt.functions.clear();
        }
        if debt.functions.len() >= DEBTS_MAX {
            debt.functions.remove(0);
        }
        debt.functions.push(function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDING: ReadRequest =
        ReadRequest { unit: 9, kind: RegisterKind::Holding, start: 40, quantity: 12 };

    #[test]
    fn a_reply_pays_the_oldest_debt_and_all_before_it() {
        let mut debts = Debts::default();
        for function in [3, 4, 3] {
            debts.missed(9, function, false);
        }
        assert!(debts.owes(9, 3) && !debts.owes(9, 1) && !debts.owes(8, 3));
        assert_eq!(debts.probe(HOLDING).kind, RegisterKind::Coil, "03 and 04 are owed");
        assert!(debts.heard(9, 0x84), "the exception to 04");
        assert!(debts.owes(9, 3), "the younger 03");
        assert!(!debts.heard(9, 4), "a second one is nobody's");
        assert!(debts.heard(9, 3));
        assert!(!debts.owes_any(9));
    }

    #[test]
    fn a_unit_that_is_switched_off_owes_the_last_request_only() {
        let mut debts = Debts::default();
        debts.missed(9, 3, true);
        debts.missed(9, 4, true);
        assert!(debts.owes(9, 3));
        debts.missed(9, 4, true);
        assert!(!debts.owes(9, 3) && debts.owes(9, 4));
        for _ in 0..100 {
            debts.missed(9, 3, false);
        }
        assert_eq!(debts.0[&9].functions.len(), DEBTS_MAX);
        debts.paid(9);
        assert!(!debts.owes_any(9));
    }
}

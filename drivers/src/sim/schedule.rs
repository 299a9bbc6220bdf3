//! Which fault touches a reply: the faults of one server, over time.
//!
//! The first fault that can be shown on a reply takes it; each counts for itself the replies that
//! it could have taken. Ended faults are forgotten.

use tokio::time::Instant;

use super::alter::Answer;
use super::{FaultKind, SimFault};

/// Faults of one server that have not ended.
const FAULTS_MAX: usize = 256;

/// The faults of one server.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    faults: Vec<Scheduled>,
}

#[derive(Debug)]
struct Scheduled {
    fault: SimFault,
    from: Instant,
    until: Option<Instant>,
    /// Replies that it could have touched, and those that it did.
    seen: u64,
    done: u32,
}

impl Schedule {
    /// Adds a fault whose time begins `now`. `false` where there are too many.
    pub(super) fn add(&mut self, fault: SimFault, now: Instant) -> bool {
        self.forget(now);
        if self.faults.len() >= FAULTS_MAX {
            return false;
        }
        let from = now + fault.at.duration();
        let until = fault.lasting.map(|span| from + span.duration());
        self.faults.push(Scheduled { fault, from, until, seen: 0, done: 0 });
        true
    }

    /// Ends all faults.
    pub(super) fn clear(&mut self) {
        self.faults.clear();
    }

    /// What touches this answer, if anything does; counts it.
    pub(super) fn choose(&mut self, answer: Answer<'_>, now: Instant) -> Option<FaultKind> {
        self.forget(now);
        self.faults.iter_mut().find_map(|one| {
            let fault = &one.fault;
            let mine = fault.unit_id.is_none_or(|unit| unit.get() == answer.asked.unit);
            if now < one.from || !mine || !answer.suits(fault.kind) {
                return None;
            }
            one.seen += 1;
            one.seen.is_multiple_of(u64::from(fault.every)).then(|| {
                one.done += 1;
                fault.kind
            })
        })
    }

    fn forget(&mut self, now: Instant) {
        self.faults.retain(|one| {
            one.until.is_none_or(|until| now < until)
                && one.fault.count.is_none_or(|count| one.done < count)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::SimFraming;
    use crate::sim::alter::Before;
    use crate::sim::wire::Asked;
    use crate::types::{Span, UnitId};

    /// Asks once a second from second 0 on; one letter for each reply.
    fn over(seconds: u64, unit: u8, faults: &[SimFault]) -> String {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        for fault in faults {
            assert!(schedule.add(fault.clone(), start));
        }
        let asked = Asked { raw: vec![], id: 0, unit, pdu: vec![3, 0, 0, 0, 1] };
        let answer = Answer {
            framing: SimFraming::Tcp,
            asked: &asked,
            before: Before::default(),
            pdu: &[3, 2, 0, 0],
        };
        (0..seconds)
            .map(|second| match schedule.choose(answer, start + Duration::from_secs(second)) {
                None => '.',
                Some(FaultKind::Silence) => 's',
                Some(FaultKind::Busy) => 'b',
                Some(_) => '?',
            })
            .collect()
    }

    #[test]
    fn faults_come_when_and_as_often_as_they_say() {
        let silence = SimFault::lasting(FaultKind::Silence);
        let at = Span::from_secs;
        assert_eq!(over(4, 1, &[]), "....");
        assert_eq!(over(4, 1, std::slice::from_ref(&silence)), "ssss");
        assert_eq!(over(4, 1, &[SimFault::once(FaultKind::Silence)]), "s...");
        let window = SimFault { at: at(2), lasting: Some(at(3)), ..silence.clone() };
        assert_eq!(over(7, 1, std::slice::from_ref(&window)), "..sss..");
        let third = SimFault { every: 3, count: Some(2), ..silence.clone() };
        assert_eq!(over(11, 1, &[third]), "..s..s.....");
        let unit = SimFault { unit_id: UnitId::new(2), ..silence };
        assert_eq!(over(2, 1, std::slice::from_ref(&unit)), "..");
        assert_eq!(over(2, 2, &[unit]), "ss");
        // The first takes the reply; the other waits for the ones that it leaves.
        assert_eq!(over(7, 1, &[window, SimFault::once(FaultKind::Busy)]), "b.sss..");
        let busy = SimFault { at: at(3), count: Some(2), ..SimFault::lasting(FaultKind::Busy) };
        let first = SimFault { count: Some(4), ..SimFault::lasting(FaultKind::Silence) };
        assert_eq!(over(7, 1, &[first, busy]), "ssssbb.");
    }

    #[test]
    fn a_fault_that_cannot_be_shown_waits() {
        assert_eq!(over(3, 1, &[SimFault::once(FaultKind::WrongCrc)]), "...");
    }

    #[test]
    fn faults_have_a_bound_and_ended_ones_make_room() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let brief =
            SimFault { lasting: Some(Span::from_secs(1)), ..SimFault::once(FaultKind::Busy) };
        for _ in 0..FAULTS_MAX {
            assert!(schedule.add(brief.clone(), start));
        }
        assert!(!schedule.add(brief.clone(), start));
        assert!(schedule.add(brief, start + Duration::from_secs(1)));
        schedule.clear();
        assert!(schedule.faults.is_empty());
    }
}

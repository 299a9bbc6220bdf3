//! What is delivered next: one lane strictly in order, or a backlog and live records beside each
//! other.
//!
//! The backlog is what waits when a connection is made or a sink resumed: only it has a rate and is
//! marked. Where live records may pass it, the outbox is split: two lanes, each in order with its own
//! cursor, until the backlog is settled. Decides, and waits for nothing but rows; knows no driver.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use tidegate_engine::store::StoreError;
use tokio::time::Instant;

use super::lane::Lane;
use super::outbox::Outbox;
use super::pace::{Bucket, Pace, Shares};

/// How what waited is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Plan {
    /// Records of the backlog in a second at most.
    pub rate: Option<f64>,
    /// The part that live records have at least; none where all go in order.
    pub share: Option<f64>,
    /// Live records go first.
    pub newest: bool,
}

impl Plan {
    fn has_live_lane(&self) -> bool {
        self.share.is_some() || self.newest
    }
}

/// Which lane something is delivered from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The backlog, or the only lane.
    Main,
    /// Live records beside a backlog.
    Live,
}

/// The next delivery: so many records from the head of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) side: Side,
    pub(super) rows: usize,
    /// The other lane could have delivered as well.
    contested: bool,
}

/// What a lane has to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    Nothing,
    /// Rows are on their way from the store.
    Coming,
    /// Rows that may go from then on.
    Later(Instant),
    Now(usize),
}

/// The outbox of one sink, as its pump sees it.
pub struct Queue {
    outbox: Arc<dyn Outbox>,
    plan: Plan,
    rows_max: usize,
    main: Lane,
    live: Option<Lane>,
    /// Live rows were waited for in vain: what is there cannot be read, and more may never come.
    live_missing: bool,
    /// Position of the last record of the backlog.
    backlog_end: u64,
    /// Lanes are to begin as soon as the store can.
    split_due: bool,
    /// How often notices of gaps stayed that were passed here.
    notices_kept: u64,
    bucket: Option<Bucket>,
    pace: Pace,
    shares: Option<Shares>,
}

impl Queue {
    /// The queue of `outbox`; deliveries have at most `rows_max` records.
    pub fn new(outbox: Arc<dyn Outbox>, plan: Plan, rows_max: usize) -> Self {
        Self {
            notices_kept: outbox.notices_kept(),
            outbox,
            plan,
            rows_max,
            main: Lane::default(),
            live: None,
            live_missing: false,
            backlog_end: 0,
            split_due: false,
            bucket: None,
            pace: Pace::default(),
            shares: None,
        }
    }

    /// Takes what waits now for the backlog; `rate` in place of the plan's.
    pub(super) fn begin(&mut self, rate: Option<f64>, now: Instant) {
        self.forget();
        self.follow();
        self.backlog_end = self.outbox.end();
        self.pace = Pace::default();
        self.shares = self.plan.share.map(Shares::new);
        self.set_rate(rate, now);
        // A backlog of one delivery, or of one second, holds up nobody.
        let second = rate.map_or(f64::INFINITY, |rate| rate.max(1.0));
        let least = second.min(f64::from(u32::try_from(self.rows_max).unwrap_or(u32::MAX)));
        let waiting = f64::from(u32::try_from(self.outbox.waiting()).unwrap_or(u32::MAX));
        self.split_due = self.plan.has_live_lane() && self.live.is_none() && waiting > least;
    }

    /// Another rate for the backlog, or none.
    pub(super) fn set_rate(&mut self, rate: Option<f64>, now: Instant) {
        self.bucket = rate.map(|rate| Bucket::new(rate, now));
    }

    /// Whether something of the backlog waits.
    pub(super) fn has_backlog(&self) -> bool {
        self.live.is_some() || self.main.cursor < self.backlog_end
    }

    /// Position of the last record that was there when the connection was made.
    pub(super) fn backlog_end(&self) -> u64 {
        self.backlog_end
    }

    /// Lets go what is held; it is read again.
    pub(super) fn forget(&mut self) {
        self.main.forget();
        if let Some(live) = &mut self.live {
            live.forget();
        }
    }

    /// The lane of a turn.
    pub(super) fn lane(&mut self, side: Side) -> &mut Lane {
        match (side, &mut self.live) {
            (Side::Live, Some(live)) => live,
            _ => &mut self.main,
        }
    }

    /// Waits until something may be delivered. Cancel safe.
    pub(super) async fn turn(&mut self) -> Result<Turn, StoreError> {
        loop {
            if self.split_due {
                self.split().await?;
            }
            self.follow();
            // Both lanes have their rows asked for before one of them is chosen.
            self.filled().now_or_never().transpose()?;
            match self.choose(Instant::now()) {
                Ok(turn) => return Ok(turn),
                Err(Some(at)) => tokio::select! {
                    filled = self.filled() => filled?,
                    () = tokio::time::sleep_until(at) => {
                        self.live_missing = self.live.as_ref().is_some_and(|live| live.held() == 0);
                    }
                },
                Err(None) => self.filled().await?,
            }
        }
    }

    /// Resolves when a lane that had no rows has some.
    async fn filled(&mut self) -> Result<(), StoreError> {
        let (outbox, rows_max) = (self.outbox.clone(), self.rows_max);
        let lanes = [Some(&mut self.main), self.live.as_mut()];
        let mut empty: Vec<&mut Lane> =
            lanes.into_iter().flatten().filter(|lane| lane.held() == 0).collect();
        poll_fn(|context| {
            let mut filled = Poll::Pending;
            for lane in &mut empty {
                match lane.poll_rows(context, &*outbox, rows_max) {
                    Poll::Ready(Ok(())) => filled = Poll::Ready(Ok(())),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            filled
        })
        .await
    }

    /// Begins a live lane behind what is durable.
    async fn split(&mut self) -> Result<(), StoreError> {
        let Some(lanes) = self.outbox.split().await? else {
            self.split_due = false;
            return Ok(());
        };
        // Lanes of which the backlog is settled here, and not yet durably so, are not begun again.
        self.split_due = lanes.split <= self.main.passed();
        Ok(())
    }

    /// Takes over what the store knows to be settled, and whether there are two lanes.
    fn follow(&mut self) {
        // First: what is read later may know of more, and not of less.
        let kept = self.outbox.notices_kept();
        let (cursor, stored) = (self.outbox.cursor(), self.outbox.lanes());
        match (&mut self.live, stored) {
            (Some(live), Some(lanes)) if self.main.upto == Some(lanes.split) => {
                live.follow(lanes.live);
            }
            (Some(live), _) => {
                // What was left of the backlog was dropped. The notices of it stand before the
                // cursor of the live lane.
                live.step_back(cursor);
                self.main.cursor = self.main.upto.unwrap_or(cursor);
            }
            (None, Some(lanes)) if lanes.split > self.main.passed().max(cursor) => {
                self.live = Some(Lane::new(lanes.live.max(lanes.split), None));
                self.main.upto = Some(lanes.split);
                // It may hold rows that are the live lane's now.
                self.main.forget();
            }
            (None, _) => {}
        }
        self.main.follow(cursor);
        self.join();
        if std::mem::replace(&mut self.notices_kept, kept) != kept {
            self.main.step_back(cursor);
        }
    }

    /// Makes the live lane the only one where the backlog is settled.
    fn join(&mut self) {
        if self.main.is_over()
            && let Some(live) = self.live.take()
        {
            self.main = live;
        }
    }

    /// What comes next, or when to look again.
    fn choose(&mut self, now: Instant) -> Result<Turn, Option<Instant>> {
        if self.live.is_none() {
            return match self.offer(Side::Main, now) {
                Offer::Now(rows) => Ok(Turn { side: Side::Main, rows, contested: false }),
                Offer::Later(at) => Err(Some(at)),
                Offer::Coming | Offer::Nothing => Err(None),
            };
        }
        let main = match self.offer(Side::Main, now) {
            Offer::Now(rows) => Offer::Now(rows.min(self.pace.rows())),
            other => other,
        };
        let live = self.offer(Side::Live, now);
        let busy = |offer| matches!(offer, Offer::Now(_) | Offer::Coming);
        let contested = busy(main) && busy(live);
        let turn = |side, rows| Ok(Turn { side, rows, contested });
        let owed = self.shares.map_or(0, |shares| shares.owed());
        // Without a share live records wait, as they do in one lane.
        let alone = self.plan.newest || self.shares.is_some();
        match (live, main) {
            (Offer::Now(rows), _) if self.plan.newest => turn(Side::Live, rows),
            (Offer::Coming, _) if self.plan.newest => Err(Some(now + LIVE_MAX)),
            (Offer::Now(rows), main) if busy(main) && owed > 0 => turn(Side::Live, rows.min(owed)),
            (Offer::Coming, main) if busy(main) && owed > 0 => Err(Some(now + LIVE_MAX)),
            (_, Offer::Now(rows)) => turn(Side::Main, rows),
            (_, Offer::Coming) => Err(None),
            (Offer::Now(rows), _) if alone => turn(Side::Live, rows),
            (live, main) => Err(match (later(live).filter(|_| alone), later(main)) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }),
        }
    }

    fn offer(&mut self, side: Side, now: Instant) -> Offer {
        let (end, backlog_end) = (self.outbox.end(), self.backlog_end);
        let missing = side == Side::Live && self.live_missing;
        let lane = self.lane(side);
        let held = lane.held();
        if held == 0 {
            let end = lane.upto.map_or(end, |upto| upto.min(end));
            return if end > lane.cursor && !missing { Offer::Coming } else { Offer::Nothing };
        }
        if missing {
            self.live_missing = false;
        }
        let lane = self.lane(side);
        let old = lane.held_upto(backlog_end);
        match &mut self.bucket {
            Some(bucket) if old > 0 => match bucket.pass(old, now) {
                Ok(rows) if rows < old => Offer::Now(rows),
                Ok(_) => Offer::Now(held),
                Err(at) => Offer::Later(at),
            },
            _ => Offer::Now(held),
        }
    }

    /// Everything of a lane up to `position` was taken by the far side, or set aside.
    pub(super) fn delivered(&mut self, side: Side, position: u64) {
        self.lane(side).settle(position);
        match side {
            Side::Main => self.outbox.delivered(position),
            Side::Live => self.outbox.delivered_live(position),
        }
        self.join();
    }

    /// A record was refused for good; all before it are settled.
    pub(super) fn reject(&mut self, side: Side, position: u64, reason: &str) {
        self.lane(side).settle(position);
        self.outbox.reject(position, reason);
        self.join();
    }

    /// Learns from a delivery: so many records went, `old` of them from the backlog, and it took so
    /// long. Comes before they are settled.
    pub(super) fn learn(&mut self, turn: Turn, sent: usize, old: usize, took: Duration) {
        if let Some(bucket) = &mut self.bucket
            && old > 0
        {
            bucket.spend(old, took);
        }
        if self.live.is_none() || sent == 0 {
            return;
        }
        if turn.side == Side::Main {
            self.pace.learn(sent, took, self.rows_max);
        }
        match (&mut self.shares, turn.side) {
            (Some(shares), Side::Main) => shares.backlog(sent, turn.contested),
            (Some(shares), Side::Live) if turn.contested => shares.live(sent),
            _ => {}
        }
    }
}

/// How long the store may take to read live rows before the backlog goes on without them.
const LIVE_MAX: Duration = Duration::from_secs(1);

/// When an offer becomes one.
fn later(offer: Offer) -> Option<Instant> {
    match offer {
        Offer::Later(at) => Some(at),
        _ => None,
    }
}

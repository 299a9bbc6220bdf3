//! What is logged, and how that is changed for a while.
//!
//! Levels that somebody turned up for a look go back by themselves: a gateway that nobody looks at
//! any more must not fill its journal. Knows nothing of who asks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_drivers::types::Span;
use tidegate_web_ui::LogLevels;
use tokio::time::Instant;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// The longest time for which levels are changed.
pub const CHANGE_MAX: Duration = Duration::from_hours(24);

/// How logs are written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// One JSON object a line.
    pub json: bool,
    /// In colour.
    pub color: bool,
}

/// The levels by which this process logs. Clones are the same.
#[derive(Clone)]
pub struct Levels(Arc<Shared>);

struct Shared {
    filter: reload::Handle<EnvFilter, Registry>,
    /// What the process was started with.
    own: String,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    /// Other levels than its own, and until when.
    changed: Option<(String, Instant)>,
    /// Counts changes, so that an old one's end does not end a newer one.
    changes: u64,
}

/// Begins to log by `levels`, such as `info,tidegate_drivers=debug`.
pub fn init(levels: &str, form: Form) -> Result<Levels, String> {
    let (layer, filter) = reload::Layer::new(parse(levels)?);
    let lines = tracing_subscriber::fmt::layer().with_ansi(form.color).with_writer(std::io::stderr);
    let lines = if form.json { lines.json().boxed() } else { lines.boxed() };
    let logs = tracing_subscriber::registry().with(layer).with(lines);
    logs.try_init().map_err(|e: TryInitError| e.to_string())?;
    Ok(Levels::new(filter, levels))
}

/// Has panics logged as everything else is, in one line with their place. A backtrace comes with it
/// where `RUST_BACKTRACE` asks for one.
pub fn show_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("without a word");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let backtrace = std::backtrace::Backtrace::capture();
        if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            tracing::error!(place, thread, %backtrace, "panic: {text}");
        } else {
            tracing::error!(place, thread, "panic: {text}");
        }
    }));
}

fn parse(levels: &str) -> Result<EnvFilter, String> {
    // It would be taken for a module of that name, of which nothing is ever logged.
    if let Some(span) = levels.split(',').map(str::trim).find(|part| part.parse::<Span>().is_ok()) {
        return Err(format!(
            "`{span}` is a duration, no level: levels are `error`, `warn`, `info`, `debug` and `trace`, \
             also per module as in `info,tidegate_drivers=debug`; for how long stands behind `--for`, as in \
             `tidegate log info --for {span}`"
        ));
    }
    EnvFilter::try_new(levels).map_err(|error| format!("{levels}: {error}"))
}

impl Levels {
    fn new(filter: reload::Handle<EnvFilter, Registry>, own: &str) -> Self {
        Self(Arc::new(Shared { filter, own: own.to_owned(), now: Mutex::default() }))
    }

    /// What is logged now.
    pub fn show(&self) -> LogLevels {
        let now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
        match &now.changed {
            None => LogLevels { levels: self.0.own.clone(), resets_in_s: None },
            Some((levels, until)) => LogLevels {
                levels: levels.clone(),
                resets_in_s: Some(until.saturating_duration_since(Instant::now()).as_secs()),
            },
        }
    }

    /// Logs by other levels for a while, at most [`CHANGE_MAX`], then by its own again; with no
    /// time at all, by its own at once. An error says what is wrong with the levels. Needs a tokio
    /// runtime.
    pub fn set(&self, levels: &str, lasting: Duration) -> Result<LogLevels, String> {
        let filter = parse(levels)?;
        let lasting = lasting.min(CHANGE_MAX);
        if lasting.is_zero() {
            self.reset(None)?;
            return Ok(self.show());
        }
        let until = Instant::now() + lasting;
        let change = {
            let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.filter.reload(filter).map_err(|e| e.to_string())?;
            now.changed = Some((levels.to_owned(), until));
            now.changes += 1;
            now.changes
        };
        tracing::info!(levels, ?lasting, "log levels changed for a while");
        let levels = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Err(error) = levels.reset(Some(change)) {
                tracing::error!(error, "the log levels stay changed");
            }
        });
        Ok(self.show())
    }

    /// Goes back to its own levels; with a change, only where that is the last one.
    fn reset(&self, change: Option<u64>) -> Result<(), String> {
        let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
        if change.is_some_and(|change| change != now.changes) || now.changed.is_none() {
            return Ok(());
        }
        self.0.filter.reload(parse(&self.0.own)?).map_err(|e| e.to_string())?;
        now.changed = None;
        drop(now);
        tracing::info!(levels = self.0.own, "log levels as at the start again");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The levels, and what must live as long as they do.
    fn levels() -> (Levels, reload::Layer<EnvFilter, Registry>) {
        let (layer, filter) = reload::Layer::new(parse("info").unwrap());
        (Levels::new(filter, "info"), layer)
    }

    fn filter(levels: &Levels) -> String {
        levels.0.filter.with_current(ToString::to_string).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn changed_levels_go_back_by_themselves() {
        let (levels, _layer) = levels();
        let changed = levels.set("info,tidegate=debug", Duration::from_mins(1)).unwrap();
        assert_eq!(changed.resets_in_s, Some(60));
        assert_eq!(filter(&levels), "tidegate=debug,info");
        tokio::time::sleep(Duration::from_secs(30)).await;
        // A second change before the end of the first: the first one's end is not its end.
        levels.set("trace", Duration::from_mins(1)).unwrap();
        tokio::time::sleep(Duration::from_secs(40)).await;
        assert_eq!(levels.show(), LogLevels { levels: "trace".into(), resets_in_s: Some(20) });
        assert_eq!(filter(&levels), "trace");
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert_eq!(levels.show(), LogLevels { levels: "info".into(), resets_in_s: None });
        assert_eq!(filter(&levels), "info");
    }

    #[tokio::test(start_paused = true)]
    async fn no_time_at_all_is_an_end_and_wrong_levels_change_nothing() {
        let (levels, _layer) = levels();
        assert!(levels.set("tidegate=loud", Duration::from_mins(1)).is_err());
        assert_eq!(filter(&levels), "info");
        let long = levels.set("debug", Duration::from_secs(1_000_000)).unwrap();
        assert_eq!(long.resets_in_s, Some(86_400));
        for duration in ["0s", "15m", "info, 250ms"] {
            let refused = levels.set(duration, Duration::from_mins(1)).unwrap_err();
            assert!(refused.contains("is a duration, no level"), "{refused}");
        }
        assert_eq!(filter(&levels), "debug", "nothing changed");
        // As numbers levels are no durations.
        assert_eq!(levels.set("2", Duration::from_mins(1)).unwrap().resets_in_s, Some(60));
        assert_eq!(levels.set("info", Duration::ZERO).unwrap().resets_in_s, None);
        assert_eq!(filter(&levels), "info");
    }
}

//! Delivery to standard output, one line a record.
//!
//! A batch is written under one lock, so that no line is torn by what else the process prints. A
//! record counts as delivered once it was flushed. A closed output will not open again: that is a
//! fault of the configuration, not of a link.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "io")]
pub use io::StdoutNorth;

/// Standard output.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StdoutSink {
    /// How records are written.
    #[serde(default)]
    pub encode: super::Encode,
}

#[cfg(feature = "io")]
mod io {
    use std::fmt;
    use std::io::{self, ErrorKind, Write};
    use std::sync::{Arc, Mutex, PoisonError};

    use futures::future::BoxFuture;

    use super::StdoutSink;
    use crate::border::{Delivered, Fault, North, Payload};
    use crate::north::lines::{blocking, lines};
    use crate::stats::{Counter, LinkState, Stats};

    /// Writes each record as a line to standard output.
    pub struct StdoutNorth {
        /// Standard output; something else in tests.
        output: Arc<Mutex<dyn Write + Send>>,
        stats: Arc<Stats>,
    }

    impl fmt::Debug for StdoutNorth {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("StdoutNorth").finish_non_exhaustive()
        }
    }

    impl StdoutNorth {
        /// Makes the sink. How records are encoded is decided before they come here.
        pub fn new(_: StdoutSink) -> Self {
            Self::over(Arc::new(Mutex::new(io::stdout())))
        }

        fn over(output: Arc<Mutex<dyn Write + Send>>) -> Self {
            Self { output, stats: Arc::default() }
        }
    }

    fn write(output: &Mutex<dyn Write + Send>, bytes: &[u8]) -> io::Result<()> {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(bytes)?;
        output.flush()
    }

    fn fault(error: &io::Error) -> Fault {
        let text = format!("standard output: {error}");
        match error.kind() {
            ErrorKind::BrokenPipe => Fault::Config(format!("{text}; nobody reads it any more")),
            _ => Fault::Link(text),
        }
    }

    impl North for StdoutNorth {
        fn stats(&self) -> Arc<Stats> {
            Arc::clone(&self.stats)
        }

        fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
            self.stats.add(Counter::Connects, 1);
            self.stats.set_state(LinkState::Up);
            self.stats.set_error(None);
            Box::pin(std::future::ready(Ok(())))
        }

        /// When the future is dropped, the batch is still written as a whole.
        fn deliver<'a>(&'a mut self, payloads: &'a [Payload]) -> BoxFuture<'a, Delivered> {
            Box::pin(async move {
                let (bytes, count, refused) = lines(payloads);
                let (output, len) = (Arc::clone(&self.output), bytes.len() as u64);
                match blocking(move || write(&output, &bytes)).await {
                    Ok(()) => {
                        self.stats.add(Counter::Requests, count as u64);
                        self.stats.add(Counter::BytesOut, len);
                        Delivered { count, fault: refused }
                    }
                    Err(error) => {
                        let fault = fault(&error);
                        self.stats.add(Counter::LinkFaults, 1);
                        self.stats.set_state(LinkState::Down);
                        self.stats.set_error(Some(fault.to_string()));
                        Delivered { count: 0, fault: Some(fault) }
                    }
                }
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::north::lines::payload;

        #[tokio::test]
        async fn each_record_is_a_line() {
            let written = Arc::new(Mutex::new(Vec::new()));
            let mut north = StdoutNorth::over(written.clone());
            north.connect().await.unwrap();
            let delivered = north.deliver(&[payload("{\"a\":1}"), payload("{\"a\":2}")]).await;
            assert_eq!(delivered, Delivered { count: 2, fault: None });
            assert_eq!(*written.lock().unwrap(), b"{\"a\":1}\n{\"a\":2}\n");
            assert_eq!(north.stats().get(Counter::BytesOut), 16);
        }

        #[tokio::test]
        async fn a_closed_output_stops_the_sink() {
            struct Closed;
            impl Write for Closed {
                fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                    Err(ErrorKind::BrokenPipe.into())
                }
                fn flush(&mut self) -> io::Result<()> {
                    Ok(())
                }
            }
            let mut north = StdoutNorth::over(Arc::new(Mutex::new(Closed)));
            let delivered = north.deliver(&[payload("x")]).await;
            assert_eq!(delivered.count, 0);
            assert!(matches!(delivered.fault, Some(Fault::Config(_))), "{delivered:?}");
        }
    }
}

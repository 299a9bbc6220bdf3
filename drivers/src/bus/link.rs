//! The ways to a device, TCP or a serial port, and the framing that is spoken there.
//!
//! Knows how a connection is made and how one request is asked; not when, and not for whom.

use std::io;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::modbus::frame::ReadRequest;
use crate::modbus::line::{LineConnection, Timing};
use crate::modbus::transaction::{Connection, Failure, Tally};
use crate::serial::{self, PortSettings};
use crate::south::modbus::{Echo, TcpBus, TidCheck};

/// A byte stream to a device.
pub(crate) trait Link: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Link for T {}

/// How a connection is made.
pub(crate) trait Connect: Send {
    fn connect(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>>;

    /// Where to, for messages.
    fn target(&self) -> String;
}

/// Connects over TCP.
pub(super) struct TcpConnector(pub(super) TcpBus);

impl Connect for TcpConnector {
    fn connect(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>> {
        Box::pin(async {
            let stream = TcpStream::connect((self.0.host.as_str(), self.0.port)).await?;
            // A request is one small segment; waiting to fill it only adds latency.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Link>)
        })
    }

    fn target(&self) -> String {
        format!("{}:{}", self.0.host, self.0.port)
    }
}

/// Opens a serial port.
pub(super) struct PortConnector(pub(super) PortSettings);

impl Connect for PortConnector {
    fn connect(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>> {
        let opened = serial::open(&self.0).map(|port| Box::new(port) as Box<dyn Link>);
        Box::pin(std::future::ready(opened))
    }

    fn target(&self) -> String {
        self.0.to_string()
    }
}

/// How frames are written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Speech {
    Tcp(TidCheck),
    Rtu(Timing, Echo),
}

/// A connection with its framing.
pub(super) enum Spoken {
    Tcp(Box<Connection<Box<dyn Link>>>),
    Rtu(Box<LineConnection<Box<dyn Link>>>),
}

impl Spoken {
    /// Takes over `stream`.
    pub(super) fn new(stream: Box<dyn Link>, speech: Speech) -> Self {
        match speech {
            Speech::Tcp(tid_check) => Self::Tcp(Box::new(Connection::new(stream, tid_check))),
            Speech::Rtu(timing, echo) => {
                Self::Rtu(Box::new(LineConnection::new(stream, timing, echo)))
            }
        }
    }

    /// Waits for the end of the connection while no request is under way. Cancel safe.
    pub(super) async fn idle(&mut self, tally: Tally<'_>) -> Failure {
        match self {
            Self::Tcp(connection) => connection.idle(tally).await,
            Self::Rtu(connection) => connection.idle(tally).await,
        }
    }

    /// Makes one request and puts the data bytes of its reply into `data`; `transaction` is its id
    /// where frames carry one. Not cancel safe.
    pub(super) async fn read(
        &mut self,
        transaction: u16,
        request: &ReadRequest,
        timeout: Duration,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
    ) -> Result<Instant, Failure> {
        match self {
            Self::Tcp(connection) => {
                connection.read(transaction, request, timeout, data, tally).await
            }
            Self::Rtu(connection) => connection.read(request, timeout, data, tally).await,
        }
    }
}

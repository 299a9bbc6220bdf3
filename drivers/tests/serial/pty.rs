//! A port that can be plugged in and out, and a unit behind it.

use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio_serial::SerialStream;

/// The far end of a port whose device file has a stable name.
pub(crate) struct Plugged {
    task: JoinHandle<()>,
    link: PathBuf,
}

impl Plugged {
    /// Makes a new port, whatever the kernel calls it, under the name `link`.
    pub(crate) fn new<F>(link: &Path, serve: impl FnOnce(SerialStream) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (far, near) = SerialStream::pair().unwrap();
        let name = std::fs::read_link(format!("/proc/self/fd/{}", near.as_raw_fd())).unwrap();
        drop(near);
        symlink(name, link).unwrap();
        Self { task: tokio::spawn(serve(far)), link: link.to_owned() }
    }

    /// Pulls the plug: the name is gone, and whoever has the port open reads its end.
    pub(crate) async fn unplug(self) {
        std::fs::remove_file(&self.link).unwrap();
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Reads like a device, to which an open and a closed port are the same: while nobody has the near
/// end open, a pty says so by an error.
pub(crate) async fn receive(far: &mut SerialStream, bytes: &mut [u8]) {
    let mut got = 0;
    while got < bytes.len() {
        match far.read(&mut bytes[got..]).await {
            Ok(count) => got += count,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// `body` with its CRC, bit by bit (serial guide, clause 6.2.2).
fn with_crc(body: &[u8]) -> Vec<u8> {
    let mut crc = 0xFFFF_u16;
    for byte in body {
        crc ^= u16::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= 0xA001;
            }
        }
    }
    let mut frame = body.to_vec();
    frame.extend(crc.to_le_bytes());
    frame
}

/// Units whose registers hold their own addresses.
pub(crate) async fn units(mut far: SerialStream) {
    let mut request = [0; 8];
    loop {
        receive(&mut far, &mut request).await;
        assert_eq!(with_crc(&request[..6]), request, "the request's CRC");
        let word = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
        let mut body = vec![request[0], request[1], u8::try_from(2 * word(4)).unwrap()];
        body.extend((0..word(4)).flat_map(|i| (word(2) + i).to_be_bytes()));
        // Whoever closed the port meanwhile does not want the reply.
        if far.write_all(&with_crc(&body)).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

/// A scale that says its weight ten times a second.
pub(crate) async fn scale(mut far: SerialStream) {
    let mut every = tokio::time::interval(Duration::from_millis(100));
    loop {
        every.tick().await;
        if far.write_all(b"ST,GS,  12.50kg\r\n").await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

//! A Modbus TCP server in a few lines that counts its connections: a change of the configuration
//! that does not concern a device must not be seen by it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The server; it serves until the test ends.
pub(crate) struct Meter {
    /// Its port on loopback.
    pub(crate) port: u16,
    accepted: Arc<AtomicU32>,
}

impl Meter {
    /// Listens, and answers each read of registers with the number 7 in all of them.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let accepted = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counter.fetch_add(1, Ordering::SeqCst);
                // It ends with its connection.
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { port, accepted }
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> u32 {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// MODBUS Messaging on TCP/IP 1.0b, section 3.1.3: transaction, protocol 0, length, unit; then
/// function, address, quantity, each two bytes but the function.
fn serve(mut stream: TcpStream) {
    let mut request = [0_u8; 12];
    while stream.read_exact(&mut request).is_ok() {
        let registers = request[11];
        let bytes = registers * 2;
        let mut answer = Vec::from(&request[..4]);
        answer.extend([0, bytes + 3, request[6], request[7], bytes]);
        answer.extend([0_u8, 7].repeat(usize::from(registers)));
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

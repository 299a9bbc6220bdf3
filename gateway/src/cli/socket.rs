//! `tidegate status` and `tidegate healthcheck`: ask a running gateway over its control socket.

use std::path::Path;

use super::FAILURE;
use crate::control::ask;

/// Prints the whole status as JSON.
pub fn status(socket: &Path) -> u8 {
    talk(socket, "/api/v1/status")
}

/// Prints whether the streams work.
pub fn healthcheck(socket: &Path) -> u8 {
    talk(socket, "/readyz")
}

fn talk(socket: &Path, path: &str) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tidegate: {error}");
            return FAILURE;
        }
    };
    match runtime.block_on(ask(socket, "GET", path)) {
        Ok((200, body)) => {
            println!("{}", body.trim_end());
            0
        }
        Ok((_, body)) => {
            println!("{}", body.trim_end());
            FAILURE
        }
        Err(error) => {
            eprintln!(
                "tidegate: no gateway answers on {}: {error}\n  hint: is it running, and is this \
                 the folder of `store.path`? See --socket",
                socket.display()
            );
            FAILURE
        }
    }
}

//! Single keys from a terminal, for the demo.

use std::io::Read;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// A terminal whose keys are read one by one; as it was before when dropped.
pub struct Keys(Option<Termios>);

impl Keys {
    /// Takes the terminal where `wanted` and there is one.
    pub fn take(wanted: bool) -> Self {
        let taken = wanted.then(|| {
            let before = tcgetattr(std::io::stdin())?;
            let mut raw = before.clone();
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
            rustix::io::Result::Ok(before)
        });
        Self(match taken {
            Some(Ok(before)) => Some(before),
            Some(Err(error)) => {
                tracing::warn!(%error, "keys are not read: this terminal cannot do it");
                None
            }
            None => None,
        })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Now, before)
        {
            tracing::warn!(%error, "the terminal stays as it is; `reset` mends it");
        }
    }
}

/// The keys that are typed; none where the terminal was not taken.
pub fn read_keys(keys: &Keys) -> mpsc::Receiver<u8> {
    let (tx, rx) = mpsc::channel(16);
    if keys.0.is_some() {
        // A read from a terminal cannot be cancelled: the thread ends with the process.
        std::thread::spawn(move || {
            for byte in std::io::stdin().lock().bytes() {
                let Ok(byte) = byte else { return };
                if tx.blocking_send(byte).is_err() {
                    return;
                }
            }
        });
    }
    rx
}

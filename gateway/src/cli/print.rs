//! Printing to standard output for a reader who may leave, as in `tidegate explain | head`.

use std::fmt::Arguments;
use std::io::Write;

/// Writes text as it is. Where nobody reads any more, nothing is left to do.
pub fn text(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        tracing::debug!(%error, "standard output is closed");
    }
}

/// Writes one line, as `println!` does, but does not panic where nobody reads.
macro_rules! say {
    () => { $crate::cli::print::text(format_args!("\n")) };
    ($($arg:tt)*) => {
        $crate::cli::print::text(format_args!("{}\n", format_args!($($arg)*)))
    };
}

pub(crate) use say;

//! A panic while a document is read or checked, as a problem of the document.
//!
//! A document must never end the program that reads it: a gateway would start again with the same one
//! for ever. It is refused instead, as any other that is wrong. Where in the program the panic was is
//! not known here; the hook of panics has logged it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What to do about a fault of the program.
pub(crate) const HINT: &str =
    "this is a fault of tidegate: say it in another way, and tell its makers what the log has";

/// Runs `work`.
///
/// # Errors
/// A sentence with the panic's text where it panicked. What it borrowed is as far as it came: problems
/// are only ever added, so those that were found before stay.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("tidegate failed over this: {}", text.unwrap_or("without a word"))
    })
}

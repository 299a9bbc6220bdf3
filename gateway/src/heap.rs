//! Keeps what the allocator holds near what the gateway uses.
//!
//! glibc gives each thread an arena of its own and raises, with each large block that is freed, the
//! size below which it keeps free memory: a gateway that parsed a large configuration once would
//! hold its pages for ever. It and `code_pages` are the places that call the C library by
//! themselves; elsewhere than on glibc it does nothing. Source: mallopt(3), malloc_trim(3).

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "two calls of the C library that take numbers and keep nothing")]
mod glibc {
    use std::ffi::c_int;

    unsafe extern "C" {
        safe fn mallopt(param: c_int, value: c_int) -> c_int;
        safe fn malloc_trim(pad: usize) -> c_int;
    }

    /// malloc.h.
    const M_TRIM_THRESHOLD: c_int = -1;
    const M_ARENA_MAX: c_int = -8;

    /// Free memory at the end of a heap that is kept.
    const KEPT_BYTES: c_int = 256 << 10;
    /// Threads that allocate much: drivers and streams.
    const ARENAS: c_int = 2;

    pub(super) fn keep_small() {
        for (param, value) in [(M_TRIM_THRESHOLD, KEPT_BYTES), (M_ARENA_MAX, ARENAS)] {
            if mallopt(param, value) == 0 {
                tracing::debug!(param, "the allocator does not take this setting");
            }
        }
    }

    pub(super) fn give_back() {
        if malloc_trim(0) == 0 {
            tracing::debug!("the allocator had nothing to give back");
        }
    }
}

/// Sets the allocator to keep little; before threads start.
pub(crate) fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_small();
}

/// Gives free pages back to the system, wherever they lie.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::give_back();
}

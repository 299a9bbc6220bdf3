//! Denies this process to execute programs.
//!
//! Tidegate never calls a shell or another program; so the kernel may as well refuse it, for the
//! day on which somebody else's bytes run here. A unit of systemd cannot: its filter is in place
//! before the program itself is executed. Source: seccomp(2), prctl(2) of man-pages 6.03.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};

/// Refuses execve and execveat, with EPERM, to all threads from now on; sets `no_new_privs` as
/// well. An error means that this kernel or processor does not do it, and that nothing changed.
pub fn no_programs() -> Result<(), String> {
    apply_filter_all_threads(&filter()?).map_err(|error| error.to_string())
}

#[allow(clippy::useless_conversion, reason = "numbers of calls are 32 bits wide on 32-bit Arm")]
fn filter() -> Result<BpfProgram, String> {
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let calls = [libc::SYS_execve, libc::SYS_execveat].map(|call| (i64::from(call), Vec::new()));
    let arch =
        std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    let filter = SeccompFilter::new(BTreeMap::from(calls), SeccompAction::Allow, refuse, arch);
    filter.and_then(TryInto::try_into).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_sealed_starts_no_program() {
        let run = || std::process::Command::new("/bin/true").status();
        assert!(run().unwrap().success());
        // This one thread, because the other tests of this process go on.
        let sealed = std::thread::spawn(move || {
            seccompiler::apply_filter(&filter().unwrap()).unwrap();
            run().map(|status| status.success()).map_err(|error| error.kind())
        });
        assert_eq!(sealed.join().unwrap(), Err(std::io::ErrorKind::PermissionDenied));
        assert!(run().unwrap().success());
    }
}

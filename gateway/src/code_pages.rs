//! Gives back the pages of code that only the start needed.
//!
//! Reading a configuration and planning SQL run through some 20 MB of code once. These pages are a
//! copy of the file, so the kernel may take them, but until it must they count as this process'
//! memory. Unmapped, those that are used again are mapped again from the page cache, sixteen at a
//! time. Only pages that cannot be written, and so cannot differ from the file, are touched.
//! Source: madvise(2), proc_pid_maps(5).

use std::path::Path;

/// An executable mapping of this program's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    start: usize,
    len: usize,
}

/// Unmaps code that is not running just now. Costs some hundred page faults of a microsecond each.
pub(crate) fn give_back() {
    let found = std::env::current_exe().and_then(|exe| {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        Ok(executable(&maps, &exe))
    });
    match found {
        Ok(mappings) => mappings.into_iter().for_each(unmap),
        Err(error) => tracing::debug!(%error, "code pages are kept"),
    }
}

/// The mappings of `exe` that are executed and cannot be written, of a text like /proc/self/maps.
fn executable(maps: &str, exe: &Path) -> Vec<Mapping> {
    let of_line = |line: &str| {
        let (fields, path) = line.split_once('/')?;
        let mut fields = fields.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let code = fields.next()? == "r-xp" && Path::new(&format!("/{path}")) == exe;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        code.then_some(Mapping { start, len: end.checked_sub(start)? })
    };
    maps.lines().filter_map(of_line).collect()
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "one system call on pages that the kernel maps again as they were")]
fn unmap(code: Mapping) {
    let Mapping { start, len } = code;
    // SAFETY: the range is a private mapping of our file without write permission (`r-xp`), so
    // every page equals the file's, and the next access brings it back.
    let done = unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED) };
    if done != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "code pages are kept");
    }
}

#[cfg(not(target_os = "linux"))]
fn unmap(_: Mapping) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_this_program_is_found() {
        let maps = "\
55a0c0000000-55a0c0600000 r--p 00000000 fe:00 42    /usr/bin/tidegate
55a0c0600000-55a0c2600000 r-xp 00600000 fe:00 42    /usr/bin/tidegate
55a0c2600000-55a0c2800000 rw-p 02600000 fe:00 42    /usr/bin/tidegate
55a0c2800000-55a0c2900000 rwxp 02800000 fe:00 42    /usr/bin/tidegate
7f0000000000-7f0000200000 r-xp 00026000 fe:00 77    /usr/lib/libc.so.6
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0     [vdso]";
        let found = executable(maps, Path::new("/usr/bin/tidegate"));
        assert_eq!(found, [Mapping { start: 0x55a0_c060_0000, len: 0x200_0000 }]);
        assert_eq!(executable(maps, Path::new("/usr/bin/other")), []);
    }

    /// Resident bytes of this program's code, as the kernel counts them.
    fn resident() -> u64 {
        let exe = std::env::current_exe().unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut counts = false;
        let mut total = 0;
        for line in smaps.lines() {
            if line.split_ascii_whitespace().next().is_some_and(|word| word.contains('-')) {
                counts = !executable(line, &exe).is_empty();
            } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| counts) {
                total += size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
            }
        }
        total
    }

    #[test]
    fn what_is_given_back_is_no_longer_resident() {
        let sql = tidegate_engine::Sql::new(16 << 20).unwrap();
        drop(sql);
        let before = resident();
        give_back();
        let after = resident();
        assert!(after < before, "{before} bytes of code before, {after} after");
        // What was unmapped still runs.
        drop(tidegate_engine::Sql::new(16 << 20).unwrap());
        assert!(resident() > after);
    }
}

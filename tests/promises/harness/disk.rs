//! File systems of the test's own: small, on a loop device or in memory, and broken on purpose.
//!
//! Each is mounted in a mount namespace that a process of the test holds, so that it goes with the
//! test however that ends, and nobody else sees it. Programs outside reach it through the holder's
//! root in `/proc`. Where mounting is not permitted there is no disk, and the test says so.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use super::driver::text;
use super::{Program, Scratch, command, program, say, secs, wait_until};

/// A mounted file system.
pub(crate) struct Disk {
    /// Keeps the namespace; it ends with this.
    holder: Program,
    /// The mount point, as the namespace sees it.
    at: PathBuf,
    /// The same, as everybody else sees it.
    path: PathBuf,
    /// How it is mounted.
    mount: Vec<String>,
}

impl Disk {
    /// An ext4 of so many MiB on a loop device, all of it for files. `None` where that is not
    /// permitted; the test then has nothing to show, and has said so.
    pub(crate) fn ext4(scratch: &Scratch, mib: u64) -> Option<Self> {
        let image = scratch.join("disk.img");
        File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("an image");
        let mut mkfs = command(program("mkfs.ext4"));
        let made = mkfs.args(["-q", "-m", "0", &text(&image)]).output().expect("mkfs.ext4");
        assert!(made.status.success(), "{made:?}");
        let options = "loop,errors=remount-ro";
        Self::new(scratch, ["-t", "ext4", "-o", options, &text(&image)].map(str::to_owned).into())
    }

    /// So many MiB of memory, as the folder of a store that need not survive a power cut. Has no device:
    /// what needs one panics.
    pub(crate) fn tmpfs(scratch: &Scratch, mib: u64) -> Option<Self> {
        let options = format!("size={mib}m,mode=0700");
        Self::new(scratch, ["-t", "tmpfs", "-o", &options, "tmpfs"].map(str::to_owned).into())
    }

    fn new(scratch: &Scratch, mount: Vec<String>) -> Option<Self> {
        let at = scratch.join("mnt");
        fs::create_dir(&at).expect("a mount point");
        let mut hold = command(program("unshare"));
        hold.args(["--mount", "--propagation", "private", "--", "cat"]);
        hold.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut holder =
            Program::start("the disk's holder", &mut hold, &scratch.join("holder.log"));
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt"));
        let ours = namespace(std::process::id()).expect("our namespace");
        wait_until("a mount namespace", secs(5), || {
            !holder.runs() || namespace(holder.child.id()).is_ok_and(|theirs| theirs != ours)
        });
        let root = format!("/proc/{}/root", holder.child.id());
        let path = Path::new(&root).join(at.strip_prefix("/").expect("an absolute path"));
        if !holder.runs() {
            skipped(&holder.log());
            return None;
        }
        let disk = Self { holder, at, path, mount };
        let mounted = disk.mount_once();
        if !mounted.status.success() {
            skipped(&String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        Some(disk)
    }

    /// Where its files are. The path of a store in it is short enough for a socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder that [`head`](super::gateway::head) puts a gateway's store in lie on this
    /// disk.
    pub(crate) fn take_store(&self, scratch: &Scratch) {
        let store = self.path.join("store");
        fs::create_dir(&store).expect("a folder");
        std::os::unix::fs::symlink(store, scratch.join("store")).expect("a link");
    }

    fn inside(&self, words: &[&str]) -> Output {
        let mut enter = command(program("nsenter"));
        enter.args(["-m", "-t", &self.holder.child.id().to_string(), "--"]);
        enter.arg(program(words[0])).args(&words[1..]).output().expect("nsenter")
    }

    fn must(&self, words: &[&str]) -> String {
        let output = self.inside(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn mount_once(&self) -> Output {
        let at = text(&self.at);
        let words = ["mount"].into_iter().chain(self.mount.iter().map(String::as_str));
        self.inside(&words.chain([at.as_str()]).collect::<Vec<_>>())
    }

    /// Mounts it, after [`unmount`](Self::unmount).
    pub(crate) fn mount(&self) {
        let output = self.mount_once();
        assert!(output.status.success(), "{output:?}");
    }

    /// Unmounts it, once nobody uses it any more.
    pub(crate) fn unmount(&self) {
        wait_until("a file system that nobody uses", secs(10), || {
            self.inside(&["umount", &text(&self.at)]).status.success()
        });
    }

    /// From now on nothing reaches the device, not even what the file system had in its journal
    /// and not written yet. What follows is an unmount.
    pub(crate) fn cut_power(&self) {
        self.must(&["xfs_io", "-x", "-c", "shutdown", &text(&self.at)]);
    }

    fn device(&self) -> String {
        let source = self.must(&["findmnt", "-n", "-o", "SOURCE", &text(&self.at)]);
        source.trim().strip_prefix("/dev/").expect("a device").to_owned()
    }

    /// Makes the file system find an error in itself: it is read-only from then on, as a worn
    /// flash's is. (A plain remount is refused while a file is open for writing.)
    pub(crate) fn fail(&self) {
        let path = format!("/sys/fs/ext4/{}/trigger_fs_error", self.device());
        File::options().write(true).open(path).expect("ext4").write_all(b"1").expect("ext4");
    }

    /// Bytes that reached the device so far, journal and metadata included.
    pub(crate) fn written(&self) -> u64 {
        // Documentation/block/stat.rst: the seventh field, in sectors of 512 bytes.
        let stat = fs::read_to_string(format!("/sys/block/{}/stat", self.device()));
        let stat = stat.expect("the figures of a device");
        let sectors = stat.split_whitespace().nth(6).expect("a seventh field");
        sectors.parse::<u64>().expect("a number") * 512
    }

    /// Writes what the system holds back to the device.
    pub(crate) fn sync(&self) {
        self.must(&["sync", "-f", &text(&self.at)]);
    }

    /// Takes all room that is left, but for `spare` bytes, by a file beside the store.
    pub(crate) fn fill(&self, spare: u64) {
        let path = self.path.join("filler");
        let mut file = File::options().create(true).append(true).open(&path).expect("a file");
        let block = [0xA5; 4096];
        let full = std::iter::repeat_with(|| file.write_all(&block)).find_map(Result::err);
        let full = full.expect("a disk with an end");
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
        let length = file.metadata().expect("a file").len();
        file.set_len(length.saturating_sub(spare)).expect("a shorter file");
        file.sync_all().expect("a disk");
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        let free = rustix::fs::statvfs(&self.path).expect("a file system");
        free.f_bavail * free.f_frsize
    }
}

/// Says why a test shows nothing here. Anything but a lack of permission is a failure.
fn skipped(reason: &str) {
    let reason = reason.trim();
    let forbidden = ["permi", "superuser", "loop device", "not supported"];
    let known = forbidden.iter().any(|word| reason.to_lowercase().contains(word));
    assert!(known, "a file system cannot be mounted: {reason}");
    say(format_args!("SKIPPED: mounting is not permitted here: {reason}"));
}

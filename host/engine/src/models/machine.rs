//! Memory that the machine has, and has left.

use std::path::{Path, PathBuf};

/// Bytes that a process can have without anybody being driven out, as Linux sees it: the kernel's own
/// guess for the machine, and what the control groups (version 2) of this process leave. None where
/// the system does not say.
pub fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = text.and_then(|text| line(&text, "MemAvailable:"));
    let groups = groups();
    let groups = groups.iter().filter_map(|folder| left_in(folder));
    machine.into_iter().chain(groups).min()
}

/// Bytes that a process can have when it has the machine to itself: the machine's, and what the control
/// groups of this process allow. None where the system does not say.
pub fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = text.and_then(|text| line(&text, "MemTotal:"));
    let groups = groups();
    let groups = groups.iter().filter_map(|folder| {
        let max = std::fs::read_to_string(folder.join("memory.max")).ok()?;
        max.trim().parse().ok()
    });
    machine.into_iter().chain(groups).min()
}

/// The folders of this process's groups.
fn groups() -> Vec<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok();
    groups.as_deref().map_or_else(Vec::new, folders)
}

fn line(meminfo: &str, name: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The group's folder and those above it, each of which may have a limit of its own.
fn folders(cgroup: &str) -> Vec<PathBuf> {
    let Some(path) = cgroup.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let root = Path::new("/sys/fs/cgroup");
    let folder = root.join(path);
    let above = folder
        .ancestors()
        .take_while(|above| above.starts_with(root));
    above.map(Path::to_owned).collect()
}

/// What a group has left; what it holds of files that nobody uses now is given back when needed.
fn left_in(folder: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    left(
        &read("memory.max")?,
        &read("memory.current")?,
        &read("memory.stat")?,
    )
}

fn left(max: &str, current: &str, stat: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let mut lines = stat.lines();
    let files = lines.find_map(|line| line.strip_prefix("inactive_file "));
    let files: u64 = files.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some(max.saturating_sub(current.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_says_is_read() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:     40 kB\n";
        assert_eq!(line(meminfo, "MemAvailable:"), Some(40 << 10));
        assert_eq!(line(meminfo, "MemTotal:"), Some(100 << 10));
        assert_eq!(line("MemTotal: 1 kB\n", "MemAvailable:"), None);
        let stat = "anon 5\ninactive_file 30\n";
        assert_eq!(left("100\n", "90\n", stat), Some(40));
        assert_eq!(left("100\n", "190\n", stat), Some(0));
        assert_eq!(left("max\n", "90\n", stat), None, "there is no limit");
        assert_eq!(left("100\n", "90\n", ""), Some(10));
    }

    #[test]
    fn a_group_is_below_those_above_it() {
        let root = Path::new("/sys/fs/cgroup");
        let found = folders("1:name=x:/y\n0::/a/b\n");
        assert_eq!(found, [root.join("a/b"), root.join("a"), root.to_owned()]);
        assert_eq!(folders("0::/\n"), [root.join("")]);
        assert_eq!(folders("1:memory:/a\n"), [] as [PathBuf; 0]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_some() {
        let free = free_memory().expect("Linux tells it");
        let all = machine_memory().expect("Linux tells it");
        assert!(1 << 20 < free && free <= all, "{free} of {all}");
    }
}

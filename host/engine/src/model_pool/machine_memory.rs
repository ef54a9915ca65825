//! Total and free memory of the machine, as Linux reports them.

use std::path::{Path, PathBuf};

/// Bytes that this process can allocate without swapping: the kernel's estimate for the machine, limited
/// by the process's control groups (version 2). `None` if the system does not report it.
pub fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = text.and_then(|text| line(&text, "MemAvailable:"));
    let groups = groups();
    let groups = groups.iter().filter_map(|dir| free_in(dir));
    machine.into_iter().chain(groups).min()
}

/// Bytes of the machine's memory, limited by the process's control groups. `None` if the system does not
/// report it.
pub fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = text.and_then(|text| line(&text, "MemTotal:"));
    let groups = groups();
    let groups = groups.iter().filter_map(|dir| {
        let max = std::fs::read_to_string(dir.join("memory.max")).ok()?;
        max.trim().parse().ok()
    });
    machine.into_iter().chain(groups).min()
}

/// The directories of this process's control groups.
fn groups() -> Vec<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok();
    groups.as_deref().map_or_else(Vec::new, dirs)
}

fn line(meminfo: &str, name: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// A group's directory and its parents, each of which may have a limit.
fn dirs(cgroup: &str) -> Vec<PathBuf> {
    let Some(path) = cgroup.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let root = Path::new("/sys/fs/cgroup");
    let dir = root.join(path);
    let above = dir.ancestors().take_while(|above| above.starts_with(root));
    above.map(Path::to_owned).collect()
}

/// Free memory of a group. Its inactive file cache counts as free.
fn free_in(dir: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    free(
        &read("memory.max")?,
        &read("memory.current")?,
        &read("memory.stat")?,
    )
}

fn free(max: &str, current: &str, stat: &str) -> Option<u64> {
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
    fn linux_memory_files_are_parsed() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:     40 kB\n";
        assert_eq!(line(meminfo, "MemAvailable:"), Some(40 << 10));
        assert_eq!(line(meminfo, "MemTotal:"), Some(100 << 10));
        assert_eq!(line("MemTotal: 1 kB\n", "MemAvailable:"), None);
        let stat = "anon 5\ninactive_file 30\n";
        assert_eq!(free("100\n", "90\n", stat), Some(40));
        assert_eq!(free("100\n", "190\n", stat), Some(0));
        assert_eq!(free("max\n", "90\n", stat), None, "no limit");
        assert_eq!(free("100\n", "90\n", ""), Some(10));
    }

    #[test]
    fn group_dirs_include_parents() {
        let root = Path::new("/sys/fs/cgroup");
        let found = dirs("1:name=x:/y\n0::/a/b\n");
        assert_eq!(found, [root.join("a/b"), root.join("a"), root.to_owned()]);
        assert_eq!(dirs("0::/\n"), [root.join("")]);
        assert_eq!(dirs("1:memory:/a\n"), [] as [PathBuf; 0]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn free_memory_is_at_most_total() {
        let free = free_memory().expect("Linux reports it");
        let all = machine_memory().expect("Linux reports it");
        assert!(1 << 20 < free && free <= all, "{free} of {all}");
    }
}

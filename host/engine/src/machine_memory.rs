//! Memory of the machine, as Linux reports it, and how short it is.
//!
//! Limits of the process's control groups count as the machine's, in version 2 and version 1.

use std::path::{Path, PathBuf};

/// Percent of time in which the kernel's stalls for memory reach the first level of pressure. Each further level
/// takes as much again.
const STALL_PERCENT: f64 = 10.0;
/// Part of the memory that is kept free by default, and its bounds in bytes.
const RESERVE_PART: u64 = 64;
const MIN_RESERVE: u64 = 32 << 20;
const MAX_RESERVE: u64 = 256 << 20;

/// Bytes that this process can allocate without swapping: the kernel's estimate for the machine, limited
/// by the process's control groups. The file cache that was used lately does not count as free. `None` if the system
/// does not report it.
pub fn free_memory() -> Option<u64> {
    MemoryFiles::default().free(1)
}

/// Bytes of the machine's memory, limited by the process's control groups. `None` if the system does not
/// report it.
pub fn machine_memory() -> Option<u64> {
    MemoryFiles::default().total()
}

/// How short memory is, from its free bytes and the time that processes wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Enough is free.
    #[default]
    None,
    /// No further request starts.
    Hold,
    /// Caches are dropped as well.
    Evict,
    /// Swapped-out states leave for the disk as well.
    SwapOut,
    /// Requests are refused.
    Refuse,
}

impl MemoryPressure {
    const ALL: [MemoryPressure; 5] = [
        MemoryPressure::None,
        MemoryPressure::Hold,
        MemoryPressure::Evict,
        MemoryPressure::SwapOut,
        MemoryPressure::Refuse,
    ];
}

/// The machine's memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryReading {
    /// All bytes.
    pub total: u64,
    /// Bytes that can be allocated, with all of the file cache.
    pub free: u64,
    /// Percent of the last ten seconds in which no process ran because all waited for memory.
    pub stalled: f64,
}

impl MemoryReading {
    /// The bytes to keep free by default: 1/64 of the memory, from 32 to 256 MiB.
    pub fn default_reserve(&self) -> u64 {
        (self.total / RESERVE_PART).clamp(MIN_RESERVE, MAX_RESERVE)
    }

    /// The level of pressure if `reserve` bytes are to stay free. Each quarter of it that is in use is a level.
    pub fn pressure(&self, reserve: u64) -> MemoryPressure {
        let quarter = reserve.div_ceil(4).max(1);
        let used = reserve.saturating_sub(self.free).div_ceil(quarter);
        let stalls = (self.stalled / STALL_PERCENT) as u64;
        let level = usize::try_from(used.max(stalls)).unwrap_or(usize::MAX);
        let levels = MemoryPressure::ALL;
        levels[level.min(levels.len() - 1)]
    }
}

/// The directories in which Linux reports memory.
#[derive(Clone, Debug)]
pub struct MemoryFiles {
    proc: PathBuf,
    cgroup: PathBuf,
}

impl Default for MemoryFiles {
    /// Those of this machine.
    fn default() -> Self {
        Self::within(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }
}

/// A control group.
struct Group {
    dir: PathBuf,
    files: &'static GroupFiles,
}

/// The files of a control group. `cache` are the lines of `memory.stat` that the kernel can reclaim, the surest first.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    cache: &'static [&'static str],
}

const VERSION_2: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    cache: &["inactive_file ", "active_file ", "slab_reclaimable "],
};
const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: &["total_inactive_file ", "total_active_file "],
};

impl MemoryFiles {
    /// Reads from `proc` and `cgroup` instead of `/proc` and `/sys/fs/cgroup`.
    pub fn within(proc: &Path, cgroup: &Path) -> Self {
        MemoryFiles {
            proc: proc.to_owned(),
            cgroup: cgroup.to_owned(),
        }
    }

    /// The memory now. `None` if the system does not report it.
    pub fn read(&self) -> Option<MemoryReading> {
        Some(MemoryReading {
            total: self.total()?,
            free: self.free(usize::MAX)?,
            stalled: self.stalled(),
        })
    }

    fn total(&self) -> Option<u64> {
        let machine = self.meminfo("MemTotal:");
        let groups = self.groups().into_iter().filter_map(|group| group.limit());
        machine.into_iter().chain(groups).min()
    }

    /// Free bytes, with the first `caches` kinds of reclaimable memory of each group.
    fn free(&self, caches: usize) -> Option<u64> {
        let machine = self.meminfo("MemAvailable:");
        let groups = self.groups().into_iter();
        let groups = groups.filter_map(|group| group.free(caches));
        machine.into_iter().chain(groups).min()
    }

    /// [`MemoryReading::stalled`] of the process's control group, or else of the machine. 0 if neither tells.
    fn stalled(&self) -> f64 {
        let groups = self.groups();
        let own = groups
            .first()
            .map(|group| group.dir.join("memory.pressure"));
        let files = own.into_iter().chain([self.proc.join("pressure/memory")]);
        let texts = files.filter_map(|file| std::fs::read_to_string(file).ok());
        texts
            .map(|text| stalled_percent(&text))
            .next()
            .flatten()
            .unwrap_or(0.0)
    }

    fn meminfo(&self, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let kibibytes = value(text.lines(), name)?.strip_suffix("kB")?;
        kibibytes.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// The control groups of this process, each before its parents.
    fn groups(&self) -> Vec<Group> {
        let text = std::fs::read_to_string(self.proc.join("self/cgroup"));
        let text = text.unwrap_or_default();
        let mut groups = Vec::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let (root, files) = match controllers {
                "" => (self.cgroup.clone(), &VERSION_2),
                "memory" => (self.cgroup.join("memory"), &VERSION_1),
                _ => continue,
            };
            let dir = root.join(path.trim_start_matches('/'));
            let dirs = dir.ancestors().take_while(|dir| dir.starts_with(&root));
            groups.extend(dirs.map(|dir| Group {
                dir: dir.to_owned(),
                files,
            }));
        }
        groups
    }
}

impl Group {
    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.join(name)).ok()
    }

    /// `None` without a limit.
    fn limit(&self) -> Option<u64> {
        self.read(self.files.limit)?.trim().parse().ok()
    }

    fn free(&self, caches: usize) -> Option<u64> {
        let usage: u64 = self.read(self.files.usage)?.trim().parse().ok()?;
        let stat = self.read("memory.stat")?;
        let caches = self.files.cache.iter().take(caches);
        let cached = caches.filter_map(|name| value(stat.lines(), name)?.parse::<u64>().ok());
        let needed = usage.saturating_sub(cached.sum());
        Some(self.limit()?.saturating_sub(needed))
    }
}

/// The rest of the line that begins with `name`.
fn value<'a>(mut lines: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// `avg10` of the line `full` in the kernel's pressure file.
fn stalled_percent(text: &str) -> Option<f64> {
    let full = value(text.lines(), "full ")?;
    let average = full
        .split(' ')
        .find_map(|field| field.strip_prefix("avg10="))?;
    average.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of 100 KiB in a directory, with these further files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, MemoryFiles) {
        let dir = tempfile::tempdir().expect("a directory");
        let meminfo = "MemTotal:       100 kB\nMemAvailable:     40 kB\n";
        for (file, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().expect("within")).expect("a directory");
            std::fs::write(file, text).expect("written");
        }
        let files = MemoryFiles::within(&dir.path().join("proc"), &dir.path().join("cgroup"));
        (dir, files)
    }

    #[test]
    fn machine_without_groups_is_read() {
        let (_dir, files) = machine(&[]);
        let expected = MemoryReading {
            total: 100 << 10,
            free: 40 << 10,
            stalled: 0.0,
        };
        assert_eq!(files.read(), Some(expected));
        let nothing = MemoryFiles::within(Path::new("/nowhere"), Path::new("/nowhere"));
        assert_eq!(nothing.read(), None);
    }

    #[test]
    fn group_limits_count_with_those_of_parents() {
        let (_dir, files) = machine(&[
            ("proc/self/cgroup", "1:name=x:/y\n0::/a/b\n"),
            ("cgroup/a/b/memory.max", "max\n"),
            ("cgroup/a/b/memory.current", "1\n"),
            ("cgroup/a/b/memory.stat", ""),
            (
                "cgroup/a/b/memory.pressure",
                "some avg10=50.00 avg60=0\nfull avg10=12.50 avg60=0\n",
            ),
            ("cgroup/a/memory.max", "20000\n"),
            ("cgroup/a/memory.current", "19000\n"),
            (
                "cgroup/a/memory.stat",
                "anon 5\ninactive_file 300\nactive_file 200\n",
            ),
            ("proc/pressure/memory", "full avg10=90.00\n"),
        ]);
        let expected = MemoryReading {
            total: 20_000,
            free: 1500,
            stalled: 12.5,
        };
        assert_eq!(files.read(), Some(expected));
        assert_eq!(files.free(1), Some(1300), "without the active file cache");
    }

    #[test]
    fn groups_of_version_1_are_read() {
        let (_dir, files) = machine(&[
            ("proc/self/cgroup", "4:memory:/a\n0::/\n"),
            ("cgroup/memory/a/memory.limit_in_bytes", "5000\n"),
            ("cgroup/memory/a/memory.usage_in_bytes", "6000\n"),
            ("cgroup/memory/a/memory.stat", "total_inactive_file 1500\n"),
            (
                "proc/pressure/memory",
                "some avg10=99.00\nfull avg10=30.00 avg60=0\n",
            ),
        ]);
        let expected = MemoryReading {
            total: 5000,
            free: 500,
            stalled: 30.0,
        };
        assert_eq!(files.read(), Some(expected));
    }

    #[test]
    fn pressure_rises_by_quarters_and_stalls() {
        let level = |free, stalled| {
            let total = 1000;
            MemoryReading {
                total,
                free,
                stalled,
            }
            .pressure(100) as u8
        };
        let levels = [101, 100, 99, 75, 74, 50, 49, 25, 24, 0].map(|free| level(free, 0.0));
        assert_eq!(levels, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        let stalls = [9.0, 10.0, 25.0, 30.0, 100.0].map(|stalled| level(200, stalled));
        assert_eq!(stalls, [0, 1, 2, 3, 4]);
        assert_eq!(level(74, 10.0), 2, "the higher one counts");
    }

    #[test]
    fn default_reserve_is_bounded() {
        let reserve = |total: u64| {
            let (free, stalled) = (0, 0.0);
            MemoryReading {
                total,
                free,
                stalled,
            }
            .default_reserve()
        };
        assert_eq!(reserve(512 << 20), 32 << 20);
        assert_eq!(reserve(8 << 30), 128 << 20);
        assert_eq!(reserve(1 << 40), 256 << 20);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn free_memory_is_at_most_total() {
        let free = free_memory().expect("Linux reports it");
        let all = machine_memory().expect("Linux reports it");
        assert!(1 << 20 < free && free <= all, "{free} of {all}");
    }
}

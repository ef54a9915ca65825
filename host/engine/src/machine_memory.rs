//! Memory of the machine, as Linux reports it, and how short it is.
//!
//! The limits of the process's control groups (versions 1 and 2) apply as if they were the machine's.

use std::io;
use std::path::{Path, PathBuf};
use strum::VariantArray;

/// If all processes wait for memory in this percentage of the time, and less than twice the reserve is free, the pressure
/// is one level higher.
const STALL_PERCENT: f64 = 10.0;
/// Part of the memory that is kept free by default, and its bounds in bytes.
const RESERVE_PART: u64 = 64;
const MIN_RESERVE: u64 = 32 << 20;
const MAX_RESERVE: u64 = 256 << 20;

/// Bytes that this process can allocate without swapping: the kernel's estimate for the machine, limited
/// by the process's control groups. The file cache that was used lately does not count as free. `None` if the system
/// does not report it.
pub fn free_memory() -> Option<u64> {
    let files = MemoryFiles::default();
    files.free(&files.groups()?, 1)
}

/// Bytes of the machine's memory, limited by the process's control groups. `None` if the system does not
/// report it.
pub fn machine_memory() -> Option<u64> {
    let files = MemoryFiles::default();
    files.total(&files.groups()?)
}

/// How short memory is, from its free bytes and the time that processes wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
pub enum MemoryPressure {
    /// Enough is free.
    #[default]
    None,
    /// Offloaded prefixes are dropped.
    DropPrefixes,
    /// Requests that arrive wait as well.
    Hold,
    /// Swapped-out states move to disk as well.
    SwapOut,
    /// Requests are refused.
    Refuse,
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

    /// The level of pressure if `reserve` bytes should stay free: one level for each quarter of the reserve in use.
    /// Stalls add one level at most, and none while much is free: other processes may cause them, or a model that is
    /// larger than the memory.
    pub fn pressure(&self, reserve: u64) -> MemoryPressure {
        let quarter = reserve.div_ceil(4).max(1);
        let used = reserve.saturating_sub(self.free).div_ceil(quarter);
        let stalls = self.stalled >= STALL_PERCENT && self.free < reserve.saturating_mul(2);
        let level = usize::try_from(used + u64::from(stalls)).unwrap_or(usize::MAX);
        let levels = MemoryPressure::VARIANTS;
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

/// A control group with a limit.
struct Group {
    dir: PathBuf,
    files: &'static GroupFiles,
    /// Bytes that its processes may use.
    limit: u64,
}

/// The files of a control group. `cache` lists the lines of `memory.stat` that count reclaimable memory, the surest first.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    cache: &'static [&'static str],
}

/// A limit of this many bytes or more means no limit.
const NO_LIMIT: u64 = 1 << 62;

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

    /// The memory now. `None` if the system does not report it, or if a file cannot be read, e.g. for lack of a
    /// descriptor.
    pub fn read(&self) -> Option<MemoryReading> {
        let groups = self.groups()?;
        Some(MemoryReading {
            total: self.total(&groups)?,
            free: self.free(&groups, usize::MAX)?,
            stalled: self.stalled(&groups),
        })
    }

    fn total(&self, groups: &[Group]) -> Option<u64> {
        let machine = self.meminfo("MemTotal:")?;
        let limits = groups.iter().map(|group| group.limit);
        Some(limits.fold(machine, u64::min))
    }

    /// Free bytes, with the first `caches` kinds of reclaimable memory of each group.
    fn free(&self, groups: &[Group], caches: usize) -> Option<u64> {
        let mut least = self.meminfo("MemAvailable:")?;
        for group in groups {
            if let Some(free) = group.free(caches).ok()? {
                least = least.min(free);
            }
        }
        Some(least)
    }

    /// [`MemoryReading::stalled`] of the innermost group with a limit, or of the machine without one. 0 if the system
    /// does not report it.
    fn stalled(&self, groups: &[Group]) -> f64 {
        let file = match groups.first() {
            Some(group) => group.dir.join("memory.pressure"),
            None => self.proc.join("pressure/memory"),
        };
        let text = std::fs::read_to_string(file).ok();
        text.and_then(|text| stalled_percent(&text)).unwrap_or(0.0)
    }

    fn meminfo(&self, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let kibibytes = value(text.lines(), name)?.strip_suffix("kB")?;
        kibibytes.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// The control groups of this process that have a limit, each before its parents. `None` if a file cannot be read.
    fn groups(&self) -> Option<Vec<Group>> {
        let text = existing(&self.proc.join("self/cgroup")).ok()?;
        let mut groups = Vec::new();
        for line in text.iter().flat_map(|text| text.lines()) {
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
            for dir in dir.ancestors().take_while(|dir| dir.starts_with(&root)) {
                let limit = existing(&dir.join(files.limit)).ok()?;
                // The root has no file. Without a limit, version 2 has the word "max", and version 1 a huge number.
                let limit = limit.and_then(|limit| limit.trim().parse::<u64>().ok());
                let Some(limit) = limit.filter(|limit| *limit < NO_LIMIT) else {
                    continue;
                };
                groups.push(Group {
                    dir: dir.to_owned(),
                    files,
                    limit,
                });
            }
        }
        Some(groups)
    }
}

impl Group {
    /// `None` if the group does not report it.
    fn free(&self, caches: usize) -> io::Result<Option<u64>> {
        let usage = existing(&self.dir.join(self.files.usage))?;
        let stat = existing(&self.dir.join("memory.stat"))?;
        let usage = usage.and_then(|usage| usage.trim().parse::<u64>().ok());
        let (Some(usage), Some(stat)) = (usage, stat) else {
            return Ok(None);
        };
        let caches = self.files.cache.iter().take(caches);
        let cached = caches.filter_map(|name| value(stat.lines(), name)?.parse::<u64>().ok());
        let needed = usage.saturating_sub(cached.sum());
        Ok(Some(self.limit.saturating_sub(needed)))
    }
}

/// The text of a file, or `None` if there is none for this process. Any other failure may be temporary.
fn existing(file: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Ok(None),
            _ => Err(error),
        },
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
            ("cgroup/a/b/memory.pressure", "full avg10=80.00\n"),
            (
                "cgroup/a/memory.pressure",
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
        let groups = files.groups().expect("all are read");
        let without_active = files.free(&groups, 1);
        assert_eq!(without_active, Some(1300), "without the active file cache");
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
            // The machine's stalls may be those of other groups.
            stalled: 0.0,
        };
        assert_eq!(files.read(), Some(expected));
    }

    #[test]
    fn unreadable_group_is_not_taken_for_unlimited() {
        let (dir, files) = machine(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("cgroup/a/memory.max", "20000\n"),
            ("cgroup/a/memory.current", "19000\n"),
            ("cgroup/a/memory.stat", ""),
        ]);
        let free = || files.read().map(|reading| reading.free);
        assert_eq!(free(), Some(1000));
        for file in ["memory.current", "memory.max"] {
            let file = dir.path().join("cgroup/a").join(file);
            std::fs::remove_file(&file).expect("removed");
            assert_eq!(free(), Some(40 << 10), "the group reports nothing");
            // Reading a directory fails.
            std::fs::create_dir(&file).expect("a directory");
            assert_eq!(free(), None);
            std::fs::remove_dir(&file).expect("removed");
        }
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
        let stalls = [9.0, 10.0, 100.0].map(|stalled| level(199, stalled));
        assert_eq!(stalls, [0, 1, 1]);
        assert_eq!(level(74, 10.0), 3, "they add one level");
        assert_eq!(level(0, 100.0), 4);
        assert_eq!(level(200, 100.0), 0, "much is free");
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

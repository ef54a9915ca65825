//! Linux: takes files, sockets and programs away from a child.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope, path_beneath_rules,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Newest interface of landlock that is used; an older kernel restricts less.
const LANDLOCK: ABI = ABI::V6;

/// What any child may read: the machine's processors, its own limits, and shared libraries.
const READABLE: [&str; 6] = ["/proc", "/sys", "/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// Network, other programs, other processes, and wide interfaces of the kernel.
const REFUSED_CALLS: [i64; 17] = [
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
];

/// Restricts this process, which has one thread yet.
pub(crate) fn enter(readable: &[PathBuf], writable: Option<&Path>) -> io::Result<()> {
    // The kernel ends this process first when memory is short. Only a wish.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    restrict_files(readable, writable).map_err(io::Error::other)?;
    refuse_calls()
}

/// Hides all other files. A kernel without landlock hides none.
fn restrict_files(
    readable: &[PathBuf],
    writable: Option<&Path>,
) -> Result<(), landlock::RulesetError> {
    let common = READABLE.iter().map(Path::new);
    let readable = common.chain(readable.iter().map(PathBuf::as_path));
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(LANDLOCK)))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(LANDLOCK)))?
        .restrict_self()?;
    Ok(())
}

/// Makes the refused system calls fail with `EPERM`, where seccomp knows the processor. Threads may start, processes
/// may not.
fn refuse_calls() -> io::Result<()> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else {
        return Ok(());
    };
    let mut rules: BTreeMap<_, _> = REFUSED_CALLS.map(|call| (call, Vec::new())).into();
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_fork, libc::SYS_vfork].map(|call| (call, Vec::new())));
    let starts_process = starts_process().map_err(io::Error::other)?;
    rules.insert(libc::SYS_clone, vec![starts_process]);
    // A filter cannot read the flags of `clone3`. With `ENOSYS`, the C library starts threads with `clone`.
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    for (rules, error) in [(unknown, libc::ENOSYS), (rules, libc::EPERM)] {
        let fail = SeccompAction::Errno(error.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, fail, arch);
        let program = filter.and_then(BpfProgram::try_from);
        apply_filter(&program.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Matches a `clone` that starts no thread of this process.
fn starts_process() -> Result<SeccompRule, BackendError> {
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let is_thread = SeccompCmpOp::MaskedEq(thread);
    SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        is_thread,
        0,
    )?])
}

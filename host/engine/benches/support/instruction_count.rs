//! A program that runs one path of several, so that its instructions can be counted from outside: see
//! `host/instruction_counts.sh`.

use std::process::exit;

/// A path whose instructions are counted.
pub struct Path {
    /// One word; the reference knows it by this.
    pub name: &'static str,
    /// Operations of a run.
    pub operations: u32,
    /// Prepares as many operations as the first argument says, and does them if the second is true. All else is
    /// the same either way, so what is between two runs is what the operations take.
    pub run: fn(u32, bool),
}

/// With the arguments `count NAME` runs a path, with `count NAME without` the same but for its operations. With any
/// others lists the paths and how many operations each does: so `cargo bench`, which runs all benches, passes by.
pub fn main(paths: &[Path]) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, with) = match arguments.as_slice() {
        ["count", name] => (*name, true),
        ["count", name, "without"] => (*name, false),
        _ => {
            for path in paths {
                println!("{} {}", path.name, path.operations);
            }
            return;
        }
    };
    let Some(path) = paths.iter().find(|path| path.name == name) else {
        eprintln!("there is no path {name}; without arguments this lists all there are");
        exit(2);
    };
    (path.run)(path.operations, with);
}

/// How many of these operations a run does.
pub fn done(operations: u32, with: bool) -> u32 {
    if with { operations } else { 0 }
}

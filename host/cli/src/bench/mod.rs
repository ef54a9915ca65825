//! `corral bench`: what is claimed of Corral's speed, measured by anyone.
//!
//! Machines are shared and noisy, so what is compared is measured in one run, turn by turn, and told
//! as a ratio.

mod all;
mod boundary;
mod connection;
mod deploy;
mod endpoint;
mod flat;
mod gap;
mod http;
mod load;
mod loopback;
mod model;
mod prefix;
mod rounds;
mod stages;
mod step;
mod table;
mod threads;

use crate::arguments::Bench;
use crate::complaint::Complaint;
use crate::house;
use std::process::ExitCode;

/// Measures, and prints what was found.
pub(crate) fn bench(what: &Bench) -> Result<ExitCode, Complaint> {
    match what {
        Bench::All(arguments) => all::measure(arguments)?,
        Bench::Boundary(arguments) => {
            house::tokio_runtime(house::workers(None))?.block_on(boundary::measure(arguments))?;
        }
        Bench::Deploy(arguments) => {
            house::tokio_runtime(house::workers(None))?.block_on(deploy::measure(arguments))?;
        }
        Bench::Flat(arguments) => {
            house::tokio_runtime(house::workers(None))?.block_on(flat::measure(arguments))?;
        }
        Bench::Gap(arguments) => {
            house::tokio_runtime(house::workers(None))?.block_on(gap::measure(arguments))?;
        }
        Bench::Http(arguments) => loopback::measure(arguments)?,
        Bench::Load(arguments) => {
            house::tokio_runtime(house::workers(None))?.block_on(endpoint::measure(arguments))?;
        }
        Bench::Model(arguments) => model::write(arguments)?,
        Bench::Prefix(arguments) => {
            house::tokio_runtime(house::workers(None))?.block_on(prefix::measure(arguments))?;
        }
        Bench::Stages(arguments) => stages::measure(arguments)?,
        Bench::Step(arguments) => step::measure(arguments)?,
        Bench::Threads(arguments) => threads::measure(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The value below which `part` of the `values` lie, which it sorts; between two of them it goes evenly from one to the
/// other. 0 if there are none.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss)]
    let place = part * values.len().saturating_sub(1) as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = |place: f64| values.get(place as usize).copied().unwrap_or(0.0);
    let (lower, upper) = (at(place.floor()), at(place.ceil()));
    lower + (upper - lower) * place.fract()
}

/// A count to reckon with.
#[allow(clippy::cast_precision_loss)]
fn float(count: u64) -> f64 {
    count as f64
}

/// One thread that stands for all clients, apart from the server's.
fn clients() -> Result<tokio::runtime::Runtime, Complaint> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Complaint::telling(
            "the clients' thread could not be set up",
        ))
}

/// The middle one of some values, of an even number of them the mean of the two in the middle; 0 if there are none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&mut values.collect::<Vec<_>>(), 0.5)
}

/// The median, the least and the most of some values; all 0 if there are none.
fn median_and_ends(values: &[f64]) -> [f64; 3] {
    let mut values = values.to_vec();
    [0.5, 0.0, 1.0].map(|part| quantile(&mut values, part))
}

#[cfg(test)]
mod tests {
    use super::{median, median_and_ends, quantile};

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let mut values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(&mut values, 0.5), 3.0);
        assert!((quantile(&mut values, 0.99) - 4.96).abs() < 1e-9);
        assert_eq!(quantile(&mut values, 1.0), 5.0);
        assert_eq!(quantile(&mut values, 0.0), 1.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn an_even_number_of_values_has_its_median_between_the_two_in_the_middle() {
        let of = |values: &[f64]| median(values.iter().copied());
        assert_eq!(of(&[4.0, 1.0]), 2.5);
        assert_eq!(of(&[9.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(of(&[9.0, 1.0, 3.0]), 3.0);
        assert_eq!((of(&[7.0]), of(&[])), (7.0, 0.0));
        assert_eq!(median_and_ends(&[9.0, 1.0, 3.0, 2.0]), [2.5, 1.0, 9.0]);
        assert_eq!(median_and_ends(&[]), [0.0; 3]);
    }
}

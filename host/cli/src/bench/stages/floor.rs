//! The floor of stage 9: what the system takes to send events, without anything of Corral's.
//!
//! The raw loop of stage 0 writes an event to a socket for each token that it has computed, by the thread that calls
//! llama.cpp; so compute threads and clients are in each other's way as they are in stage 9. The clients wait for the
//! events in the thread that stands for the clients of the stages. What an event of Corral's takes more than that is Corral's.

use super::super::float;
use super::processor::in_thread;
use super::prompts::Prompt;
use super::raw::{CALLER, run};
use super::replay::{Replay, Step};
use crate::complaint::Complaint;
use corral_engine::Raw;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;

/// An event, as long as one of `openai`'s completions is, or so.
const EVENT: [u8; 200] = [b'x'; 200];

/// Microseconds of processor time that an event takes: the mean of those of all steps of `replay`, which has as many
/// `slots` as there are clients, for the requests of `prompts`. The context of `raw` is empty before and after.
pub(super) fn measure(
    raw: &mut Raw,
    replay: Replay,
    prompts: &[Prompt],
    (clients, slots): (&Runtime, usize),
) -> Result<f64, Complaint> {
    let mut ends = connect(clients, slots)?;
    let (mut seconds, mut events) = (0.0, 0_u64);
    let mut send = |step: &Step| -> Result<(), Complaint> {
        let before = of_thread();
        for row in step.rows.iter().filter(|row| row.output) {
            if let Some(end) = ends.get_mut(row.slot) {
                end.write_all(&EVENT)?;
                events += 1;
            }
        }
        seconds += of_thread() - before;
        Ok(())
    };
    let mut numbers = 0..prompts.len();
    let all = || run(raw, replay, prompts, |_| numbers.next(), &mut send, |_| ());
    in_thread(CALLER, all)??;
    Ok(1e6 * seconds / float(events.max(1)))
}

/// Connections whose other ends are read by `clients`, each until it is closed.
fn connect(clients: &Runtime, count: usize) -> Result<Vec<TcpStream>, Complaint> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut ends = Vec::new();
    for _ in 0..count {
        let client = TcpStream::connect(address)?;
        client.set_nonblocking(true)?;
        let (end, _) = listener.accept()?;
        end.set_nodelay(true)?;
        ends.push(end);
        let mut client = clients.block_on(async { tokio::net::TcpStream::from_std(client) })?;
        clients.spawn(async move {
            let mut events = [0; 4096];
            while client.read(&mut events).await.is_ok_and(|read| read > 0) {}
        });
    }
    Ok(ends)
}

/// Seconds of processor time of this thread.
#[allow(clippy::cast_precision_loss)]
fn of_thread() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

//! The CPU time of sending an event by the system alone, the minimum of stage 9.
//!
//! The raw loop of stage 0 writes an event to a socket for each computed token, on the thread that calls llama.cpp, so
//! that compute threads and clients contend for cores as in stage 9. The rest of stage 9's time per event is Corral's.

use super::cpu_time::in_thread;
use super::prompts::Prompt;
use super::raw::{CALLER_THREAD, run};
use super::replay::{Replay, Step};
use crate::http::cpu_seconds;
use corral_cli::Error;
use corral_cli::bench::stats::float;
use corral_engine::testing::RawContext;
use rustix::time::ClockId;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;

/// About as long as an event of `openai`'s completions.
const EVENT: [u8; 200] = [b'x'; 200];

/// The mean CPU time of an event in microseconds, over all steps of `replay`, which has as many slots as there are
/// clients. The context is empty before and after.
pub(super) fn measure(
    raw: &mut RawContext,
    replay: Replay,
    prompts: &[Prompt],
    (clients, concurrency): (&Runtime, usize),
) -> Result<f64, Error> {
    let mut sockets = connect(clients, concurrency)?;
    let (mut seconds, mut events) = (0.0, 0_u64);
    let mut send = |step: &Step| -> Result<(), Error> {
        let before = cpu_seconds(ClockId::ThreadCPUTime);
        for row in step.rows.iter().filter(|row| row.output) {
            if let Some(socket) = sockets.get_mut(row.slot) {
                socket.write_all(&EVENT)?;
                events += 1;
            }
        }
        seconds += cpu_seconds(ClockId::ThreadCPUTime) - before;
        Ok(())
    };
    let mut numbers = 0..prompts.len();
    let work = || run(raw, replay, prompts, |_| numbers.next(), &mut send, |_| ());
    in_thread(CALLER_THREAD, work)??;
    Ok(1e6 * seconds / float(events.max(1)))
}

/// Opens connections whose other ends are read by `clients`.
fn connect(clients: &Runtime, count: usize) -> Result<Vec<TcpStream>, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut sockets = Vec::new();
    for _ in 0..count {
        let client = TcpStream::connect(address)?;
        client.set_nonblocking(true)?;
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
        let mut client = clients.block_on(async { tokio::net::TcpStream::from_std(client) })?;
        clients.spawn(async move {
            let mut events = [0; 4096];
            while client.read(&mut events).await.is_ok_and(|read| read > 0) {}
        });
    }
    Ok(sockets)
}

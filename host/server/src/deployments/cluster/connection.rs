//! The connection to NATS. The client connects again by itself, forever, with pauses that grow to some seconds.

use super::config::ClusterConfig;
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, ConnectOptions, Event};
use std::io;
use std::time::Duration;
use tokio::sync::watch;

/// Time limit for a connection, and for the answer to a request.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Pause between pings. Two without an answer end the connection.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest pause before another attempt to connect; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How often the pause doubles: to 3.2 s.
const MAX_DOUBLINGS: u32 = 5;
/// Commands and messages that wait in the client.
const CAPACITY: usize = 1024;
/// Largest content of a message: half of what NATS takes by default.
pub(crate) const MAX_MESSAGE_BYTES: usize = 512 << 10;
/// What the headers of a message, and JetStream, add.
pub(super) const MESSAGE_OVERHEAD: usize = 4 << 10;

/// A connection that is restored when it is lost.
pub(crate) struct NatsConnection {
    pub(crate) client: Client,
    /// JetStream of the connection.
    pub(crate) context: Context,
    /// Addresses without passwords.
    pub(crate) servers: String,
    state: watch::Receiver<ConnectionState>,
}

#[derive(Clone, Debug, Default)]
struct ConnectionState {
    is_connected: bool,
    /// How often a connection was made.
    connections: u64,
    last_error: Option<String>,
}

impl NatsConnection {
    /// Begins to connect, and returns before there is a connection.
    ///
    /// # Errors
    /// If the credentials are invalid.
    pub(super) async fn open(config: ClusterConfig) -> io::Result<Self> {
        let (sender, state) = watch::channel(ConnectionState::default());
        let mut options = ConnectOptions::new()
            .name("corral")
            .retry_on_initial_connect()
            .connection_timeout(REQUEST_TIME)
            .request_timeout(Some(REQUEST_TIME))
            .ping_interval(PING_INTERVAL)
            .client_capacity(CAPACITY)
            .subscription_capacity(CAPACITY)
            .require_tls(config.require_tls)
            .reconnect_delay_callback(pause)
            .event_callback(move |event| {
                sender.send_modify(|state| state.record(&event));
                std::future::ready(())
            });
        if let Some(tls) = config.tls {
            options = options.tls_client_config(tls);
        }
        if let Some(credentials) = &config.credentials {
            options = options.credentials(credentials)?;
        }
        let servers = config.servers;
        if let Some((user, password)) = servers.user_and_password() {
            options = match password {
                Some(password) => options.user_and_password(user, password),
                None => options.token(user),
            };
        }
        let shown = servers.to_string();
        let client = options.connect(servers.addresses()?).await;
        let client = client.map_err(io::Error::other)?;
        let context = ContextBuilder::new().timeout(REQUEST_TIME);
        Ok(NatsConnection {
            context: context.build(client.clone()),
            client,
            servers: shown,
            state,
        })
    }

    /// Whether there is a connection now. Not what the client says: it reports that it has connected before it says so.
    pub(crate) fn is_connected(&self) -> bool {
        self.state.borrow().is_connected
    }

    /// Fails without a usable connection, with the reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.is_connected() {
            true => check_message_size(self.client.max_payload()),
            false => Err(self.last_error()),
        }
    }

    /// Waits for a connection, and returns its number.
    pub(crate) async fn connected(&self) -> u64 {
        let mut state = self.state.clone();
        let connected = state.wait_for(|state| state.is_connected).await;
        let number = connected.ok().map(|state| state.connections);
        match number {
            Some(number) => number,
            // The client has ended, which it does at the end of the process only.
            None => std::future::pending().await,
        }
    }

    /// Waits until the connection of this number is lost.
    pub(crate) async fn lost(&self, number: u64) {
        let mut state = self.state.clone();
        // An error means that the client has ended.
        let _ = state
            .wait_for(|state| !state.is_connected || state.connections != number)
            .await;
    }

    /// Why there is no connection.
    pub(crate) fn last_error(&self) -> String {
        let error = self.state.borrow().last_error.clone();
        error.unwrap_or_else(|| "nothing has answered yet".to_owned())
    }
}

impl ConnectionState {
    fn record(&mut self, event: &Event) {
        match event {
            Event::Connected => {
                self.is_connected = true;
                self.connections += 1;
                self.last_error = None;
                tracing::info!("connected to the cluster's NATS");
            }
            Event::Disconnected | Event::Closed if self.is_connected => {
                self.is_connected = false;
                let error = self
                    .last_error
                    .get_or_insert("the connection was lost".to_owned());
                tracing::warn!("no connection to the cluster's NATS: {error}");
            }
            Event::ServerError(error) => self.last_error = Some(error.to_string()),
            Event::ClientError(error) => self.last_error = Some(error.to_string()),
            _ => {}
        }
    }
}

/// Refuses a server whose largest message is too small.
fn check_message_size(max_payload: usize) -> Result<(), String> {
    const NEEDED: usize = MAX_MESSAGE_BYTES + MESSAGE_OVERHEAD;
    match max_payload < NEEDED {
        true => Err(format!(
            "NATS takes messages of at most {max_payload} bytes, and Corral needs {NEEDED}; set 'max_payload: 1MB' in the \
             configuration of NATS"
        )),
        false => Ok(()),
    }
}

/// The pause before an attempt to connect, counted from 1.
fn pause(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(2)).unwrap_or(MAX_DOUBLINGS);
    let longest = FIRST_PAUSE * 2u32.pow(doublings.min(MAX_DOUBLINGS));
    match attempt {
        0 | 1 => Duration::ZERO,
        _ => with_jitter(longest),
    }
}

/// Half of this duration to all of it, so that hosts do not act at the same moment.
pub(crate) fn with_jitter(longest: Duration) -> Duration {
    longest.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_with_small_messages_is_refused() {
        let error = check_message_size(512 << 10).expect_err("no room for headers");
        for expected in ["524288 bytes", "528384", "max_payload: 1MB"] {
            assert!(error.contains(expected), "{error}");
        }
        check_message_size(1 << 20).expect("the default of NATS");
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        assert_eq!(pause(1), Duration::ZERO);
        for (attempt, longest) in [(2, 100), (3, 200), (7, 3200), (usize::MAX, 3200)] {
            let pause = pause(attempt).as_millis();
            assert!(
                (longest / 2..=longest).contains(&pause),
                "{attempt}: {pause}"
            );
        }
    }
}

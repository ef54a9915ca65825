//! Messages that JetStream stores together, or not at all (ADR-50 of NATS; servers from 2.12).

use super::{PART_BYTES, part};
use crate::triggers::job::JobKey;
use async_nats::{Client, HeaderMap, Request, header};
use bytes::Bytes;
use serde::Deserialize;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::timeout;

/// Messages of a batch that the server takes.
const MAX_MESSAGES: usize = 1000;
/// Time limit for a batch.
const BATCH_TIME: Duration = Duration::from_secs(20);
/// How long the removal of a record stays, so that hosts which follow late see it.
const REMOVAL_LIFETIME: &str = "60s";
/// How long other removals stay. Hosts do not follow them.
const SHORT_LIFETIME: &str = "1s";
/// Codes of JetStream's errors for a subject whose last message is not the one expected. A stream with replicas answers
/// with the second one, which does not name the sequence of the last message.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10071, 10164];

/// Codes of its errors for a batch of which messages are missing, and for too many open batches: nothing is stored.
const TRY_AGAIN: [u64; 2] = [10176, 10210];

/// Messages to store together. Copies share their contents.
#[derive(Clone, Default)]
pub(super) struct Batch(Vec<(String, HeaderMap, Bytes)>);

/// What became of a batch.
pub(super) enum Committed {
    /// Its last message has this sequence.
    At(u64),
    /// Nothing is stored; it can be computed again. If a record has another version, this is the sequence of its last
    /// message, if JetStream tells it.
    WrongVersion(Option<u64>),
    /// JetStream refuses it, for this reason.
    Refused(String),
}

/// Answer of JetStream.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    seq: u64,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the messages, and leaves none.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    pub(super) fn has_room_for(&self, other: &Self) -> bool {
        self.0.len() + other.0.len() <= MAX_MESSAGES
    }

    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Replaces a message that has this version; 0 if there is none.
    pub(super) fn put_version(&mut self, subject: String, version: u64, payload: Bytes) {
        self.0.push((subject, expecting(version), payload));
    }

    /// Lets a message replace one that has another version.
    pub(super) fn expect(&mut self, subject: &str, version: u64) {
        for (_, headers, _) in self.0.iter_mut().filter(|(other, ..)| other == subject) {
            *headers = expecting(version);
        }
    }

    pub(super) fn put_parts(&mut self, kind: &str, key: &JobKey, bytes: &Bytes) {
        let parts = bytes.chunks(PART_BYTES as usize);
        let parts = (0..).zip(parts.map(|chunk| bytes.slice_ref(chunk)));
        let parts = parts.map(|(number, bytes)| (part(kind, key, number), HeaderMap::new(), bytes));
        self.0.extend(parts);
    }

    /// Removes a record that has this version.
    pub(super) fn remove_record(&mut self, subject: String, version: u64) {
        let mut headers = expecting(version);
        headers.insert(header::NATS_MESSAGE_TTL, REMOVAL_LIFETIME);
        self.0.push((subject, headers, Bytes::new()));
    }

    pub(super) fn remove(&mut self, subject: String) {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_MESSAGE_TTL, SHORT_LIFETIME);
        self.0.push((subject, headers, Bytes::new()));
    }

    pub(super) fn remove_parts(&mut self, kind: &str, key: &JobKey, bytes: u64) {
        for number in 0..bytes.div_ceil(PART_BYTES) {
            self.remove(part(kind, key, number));
        }
    }

    /// Stores the messages.
    ///
    /// # Errors
    /// If NATS does not answer. The messages may be stored, or be later.
    pub(super) async fn commit(self, client: &Client) -> Result<Committed, String> {
        let count = self.0.len();
        if count > MAX_MESSAGES {
            let cause = format!("a change has {count} messages, and NATS takes {MAX_MESSAGES}");
            return Ok(Committed::Refused(cause));
        }
        let text = |error: &dyn Display| error.to_string();
        let id = format!("{:032x}", rand::random::<u128>());
        let publish = async {
            let mut last = None;
            for (index, (subject, mut headers, payload)) in self.0.into_iter().enumerate() {
                let number = index + 1;
                headers.insert(header::NATS_BATCH_ID, id.as_str());
                headers.insert(header::NATS_BATCH_SEQUENCE, number.to_string());
                if number == count {
                    headers.insert(header::NATS_BATCH_COMMIT, header::NATS_BATCH_COMMIT_FINAL);
                    let request = Request::new().headers(headers).payload(payload);
                    let request = request.timeout(Some(BATCH_TIME));
                    let answer = client.send_request(subject, request).await;
                    last = Some(answer.map_err(|error| text(&error))?.payload);
                } else {
                    let published = client.publish_with_headers(subject, headers, payload);
                    published.await.map_err(|error| text(&error))?;
                }
            }
            Ok::<_, String>(last.unwrap_or_default())
        };
        let answer = timeout(BATCH_TIME, publish).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())??;
        let answer = serde_json::from_slice(&answer).map_err(|error| text(&error))?;
        Ok(match answer {
            Answer {
                seq, error: None, ..
            } => Committed::At(seq),
            Answer {
                error: Some(error), ..
            } if TRY_AGAIN.contains(&error.err_code) => Committed::WrongVersion(None),
            Answer {
                error: Some(error), ..
            } if WRONG_LAST_SEQUENCE.contains(&error.err_code) => {
                let last = error.description.rsplit(' ').next();
                Committed::WrongVersion(last.and_then(|last| last.parse().ok()))
            }
            Answer {
                error: Some(error), ..
            } => Committed::Refused(error.description),
        })
    }
}

fn expecting(version: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let version = version.to_string();
    headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, version);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_expects_another_version() {
        let mut batch = Batch::default();
        for subject in ["a", "b"] {
            batch.put_version(subject.to_owned(), 0, Bytes::new());
        }
        batch.expect("a", 7);
        let versions = batch.0.iter().map(|(_, headers, _)| {
            let version = headers.get(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE);
            version.map(|version| version.as_str())
        });
        assert_eq!(Vec::from_iter(versions), [Some("7"), Some("0")]);
    }
}

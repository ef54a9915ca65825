//! The form of an [`Entry`] in the cluster's bucket: JSON.

use super::connection::MAX_MESSAGE_BYTES;
use crate::deployments::name::DeploymentName;
use crate::deployments::revision::{DeploymentRecord, Revision};
use crate::deployments::store::StoreError;
use crate::deployments::stored_deployment::{Entry, StoredDeployment, check_traffic};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Version of the form. Others are refused.
const FORMAT: u32 = 1;
/// Largest number of a revision: each deploy adds one.
const MAX_REVISION: u64 = u64::MAX / 2;
/// Largest record.
pub(super) const MAX_BYTES: usize = MAX_MESSAGE_BYTES;

#[derive(Deserialize, Serialize)]
struct Record {
    latest_revision: u64,
    first_revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deployment: Option<RecordedDeployment>,
}

#[derive(Deserialize, Serialize)]
struct RecordedDeployment {
    record: DeploymentRecord,
    revisions: Vec<Revision>,
}

/// What every format has.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

#[derive(Serialize)]
struct Headed<'a> {
    format: u32,
    #[serde(flatten)]
    record: &'a Record,
}

/// The bytes of an entry.
pub(super) fn encode(name: &DeploymentName, entry: &Entry) -> Result<Bytes, StoreError> {
    let deployment = entry.deployment.as_ref();
    let record = Record {
        latest_revision: entry.latest_revision,
        first_revision: entry.first_revision,
        deployment: deployment.map(|deployment| RecordedDeployment {
            record: deployment.record.clone(),
            revisions: deployment.revisions.values().cloned().collect(),
        }),
    };
    let headed = Headed {
        format: FORMAT,
        record: &record,
    };
    let bytes = serde_json::to_vec(&headed).map_err(|error| invalid(name, error.to_string()))?;
    match bytes.len() > MAX_BYTES {
        true => Err(invalid(
            name,
            format!(
                "it would have {} bytes, the limit is {MAX_BYTES}; make the manifest smaller, or remove the deployment \
                 and deploy it again",
                bytes.len()
            ),
        )),
        false => Ok(bytes.into()),
    }
}

/// The entry in these bytes. No bytes mean that the name was never used.
pub(super) fn decode(
    name: &DeploymentName,
    version: u64,
    bytes: &[u8],
) -> Result<Entry, StoreError> {
    if bytes.is_empty() {
        return Ok(Entry {
            version,
            ..Entry::default()
        });
    }
    let advice = "remove the key with the tools of NATS if nobody knows it, and deploy again";
    let parse_error = |error: serde_json::Error| invalid(name, format!("{error}; {advice}"));
    let head: Head = serde_json::from_slice(bytes).map_err(parse_error)?;
    if head.format != FORMAT {
        return Err(invalid(
            name,
            format!(
                "it has format {}, this version of Corral knows {FORMAT}; run one version on all hosts",
                head.format
            ),
        ));
    }
    let record: Record = serde_json::from_slice(bytes).map_err(|error| {
        invalid(
            name,
            format!("{error}; a newer version of Corral may have written it: run one version on all hosts"),
        )
    })?;
    if record.latest_revision > MAX_REVISION {
        let problem = format!("its latest revision is above {MAX_REVISION}; {advice}");
        return Err(invalid(name, problem));
    }
    let deployment = record.deployment.map(|deployment| StoredDeployment {
        record: deployment.record,
        revisions: deployment
            .revisions
            .into_iter()
            .map(|revision| (revision.number, revision))
            .collect(),
    });
    if let Some(deployment) = &deployment {
        check_traffic(name, deployment, &deployment.record.traffic)
            .map_err(|error| invalid(name, format!("{error}; {advice}")))?;
        let mut revisions = deployment.revisions.values();
        if revisions.any(|revision| revision.manifest.name != *name) {
            let problem = format!("it has revisions of another name; {advice}");
            return Err(invalid(name, problem));
        }
        let newest = deployment.revisions.keys().next_back().copied();
        let latest = deployment.record.latest_revision;
        if record.latest_revision != latest || newest.is_some_and(|newest| newest > latest) {
            let problem = format!("its latest revision is not the newest; {advice}");
            return Err(invalid(name, problem));
        }
    }
    Ok(Entry {
        version,
        latest_revision: record.latest_revision,
        first_revision: record.first_revision,
        deployment,
    })
}

fn invalid(name: &DeploymentName, problem: String) -> StoreError {
    StoreError::Record {
        name: name.clone(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::digest::Digest;
    use crate::deployments::stored_deployment::NewRevision;
    use crate::deployments::test_support::{manifest, name};

    fn deployed(revisions: usize) -> Entry {
        let mut entry = Entry::default();
        let component = Digest::of(b"component");
        for _ in 0..revisions {
            let new = NewRevision {
                component,
                component_bytes: 9,
                source: None,
                manifest: manifest("a", component),
            };
            entry.deploy(new, true, 20);
        }
        entry
    }

    #[test]
    fn entries_survive_encoding() {
        let a = name("a");
        let mut removed = deployed(3);
        removed.remove(&a).expect("it exists");
        for entry in [Entry::default(), deployed(1), deployed(25), removed] {
            let bytes = encode(&a, &entry).expect("small");
            let entry = Entry {
                version: 7,
                ..entry
            };
            assert_eq!(decode(&a, 7, &bytes).expect("ours"), entry);
        }
        assert_eq!(decode(&a, 7, b"").expect("no record").version, 7);
    }

    #[test]
    fn unusable_records_say_why() {
        let a = name("a");
        let bytes = encode(&a, &deployed(1)).expect("small");
        let text = String::from_utf8(bytes.to_vec()).expect("JSON");
        for (bad, expected) in [
            ("{".to_owned(), "EOF"),
            (text.replace("\"format\":1", "\"format\":2"), "format 2"),
            (text.replace("\"paused\"", "\"stopped\""), "newer version"),
            (
                text.replace("\"revision\":1", "\"revision\":2"),
                "has no revision 2",
            ),
            (text.replace("\"weight\":1", "\"weight\":0"), "weight 0"),
            (
                text.replacen("\"latest_revision\":1", "\"latest_revision\":0", 1),
                "is not the newest",
            ),
            (
                text.replace(
                    "\"latest_revision\":1",
                    "\"latest_revision\":18446744073709551615",
                ),
                "is above",
            ),
            (
                text.replace("\"name\":\"a\"", "\"name\":\"b\""),
                "another name",
            ),
        ] {
            let error = decode(&a, 1, bad.as_bytes()).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn oversized_record_is_refused() {
        let mut entry = deployed(1);
        let component = Digest::of(b"component");
        let mut large = manifest("a", component);
        let text = "x".repeat(MAX_BYTES);
        large.configuration.insert("TEXT".to_owned(), text);
        let new = NewRevision {
            component,
            component_bytes: 9,
            source: None,
            manifest: large,
        };
        entry.deploy(new, true, 20);
        let error = encode(&name("a"), &entry).expect_err("too large");
        assert!(error.to_string().contains("the limit is"), "{error}");
    }
}

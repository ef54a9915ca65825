//! Next-token requests.

use super::support::*;
use crate::Error;
use crate::metrics::get;
use crate::next_token::DistributionPart;
use crate::worker::Command;
use corral_scheduler::Retention;
use corral_simulator::POISON;
use std::time::Duration;

const TOP_2: DistributionPart = DistributionPart::Top(2);

#[test]
fn failed_next_token_request_harms_no_other() {
    let engine = TestEngine::slow(Duration::from_millis(1));
    let mut retentions: [Retention; 4] = Default::default();
    let prompts = [
        vec![1, 2, 3],
        vec![1, 2, POISON, 4],
        vec![7; 60],
        vec![5, 6],
    ];
    let mut replies = engine.next_tokens(&prompts, &TOP_2, &mut retentions);
    drop(replies.remove(2));
    let mut replies = replies.into_iter().map(block_on);
    assert_eq!(replies.next().unwrap().unwrap().candidates[0].0, 4);
    assert!(matches!(replies.next().unwrap(), Err(Error::Failed(_))));
    assert_eq!(replies.next().unwrap().unwrap().candidates[0].0, 7);

    let refused = engine.next_tokens(&[vec![1; 257]], &TOP_2, &mut retentions);
    for reply in refused {
        let refused = block_on(reply);
        assert!(matches!(
            refused,
            Err(Error::ContextFull { needed: 257, .. })
        ));
    }
    let last = engine.next_tokens(&prompts[..1], &TOP_2, &mut retentions);
    engine.send(Command::Shutdown);
    for reply in last {
        let last = block_on(reply);
        assert!(matches!(last, Ok(_) | Err(Error::ShuttingDown)), "{last:?}");
    }
    drop(retentions);
    let metrics = engine.end();
    assert_eq!((get(&metrics.failed), get(&metrics.refused)), (1, 1));
}

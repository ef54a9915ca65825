//! Those who only look at what may come next.

use super::*;

/// Asks what may come next after each text, all at once; each goes on with what it has a claim on.
fn look(bench: &Bench, texts: &[Vec<Token>], claims: &mut [Retention]) -> Vec<Reply<Distribution>> {
    let asked = texts.iter().zip(claims).map(|(text, claim)| {
        let goes_on = std::mem::take(claim);
        let (sender, reply) = reply::reply();
        let submission = NewRequest {
            prompt: text.clone(),
            caller: Caller::default(),
            adapter: AdapterId::NONE,
            retention: claim.downgrade(),
            continued: Some(goes_on),
            arrived: Instant::now(),
            permit: crate::permits::RequestPermit::unlimited(),
            kind: RequestKind::NextToken {
                request: NextTokenRequest::new(DistributionPart::Top(2)),
                sender,
            },
        };
        (submission, reply)
    });
    let (all, replies): (Vec<_>, Vec<_>) = asked.unzip();
    bench.commands.send(Command::AddAll(all)).unwrap();
    replies
}

#[test]
fn a_look_computes_what_is_new_and_ends_with_what_may_come_next() {
    let bench = Bench::start();
    let mut claims: Vec<_> = (0..4).map(|_| Retention::default()).collect();
    let mut texts: Vec<Vec<Token>> = (0..4).map(|n| (100 * n..100 * n + 20).collect()).collect();
    for _ in 0..5 {
        let replies = look(&bench, &texts, &mut claims);
        for (text, reply) in texts.iter().zip(replies) {
            let shown = wait_for(reply).unwrap();
            let next = text.last().unwrap() + 1;
            assert_eq!(shown.candidates[0].0, next);
            assert_eq!(shown.position as usize, text.len());
        }
        for text in &mut texts {
            text.push(text.last().unwrap() + 1);
        }
    }
    drop(claims);
    let counters = bench.end();
    assert_eq!(value(&counters.next_token_requests), 20);
    assert_eq!(value(&counters.computed_tokens), 4 * 24, "each token once");
    assert_eq!(value(&counters.finished), 0);
    identity(&counters);
}

#[test]
fn looks_that_go_wrong_or_are_dropped_end_alone() {
    let bench = Bench::slow(Duration::from_millis(1));
    let mut claims: Vec<_> = (0..4).map(|_| Retention::default()).collect();
    let texts = vec![
        vec![1, 2, 3],
        vec![1, 2, POISON, 4],
        vec![7; 60],
        vec![5, 6],
    ];
    let mut replies = look(&bench, &texts, &mut claims);
    drop(replies.remove(2));
    let mut shown = replies.into_iter().map(wait_for);
    assert_eq!(shown.next().unwrap().unwrap().candidates[0].0, 4);
    assert!(matches!(shown.next().unwrap(), Err(Error::Failed(_))));
    assert_eq!(shown.next().unwrap().unwrap().candidates[0].0, 7);
    let (too_long, others) = (vec![vec![1; 257]], texts);
    let refused = look(&bench, &too_long, &mut claims).remove(0);
    assert!(matches!(
        wait_for(refused),
        Err(Error::ContextFull { needed: 257, .. })
    ));
    let last = look(&bench, &others[..1], &mut claims).remove(0);
    bench.commands.send(Command::Shutdown).unwrap();
    let last = wait_for(last);
    assert!(matches!(last, Ok(_) | Err(Error::Cancelled)), "{last:?}");
    drop(claims);
    let counters = bench.end();
    assert_eq!((value(&counters.failed), value(&counters.refused)), (1, 1));
    identity(&counters);
}

/// Waits for an answer without a runtime.
pub(super) fn wait_for<T>(mut reply: Reply<T>) -> Result<T, Error> {
    loop {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        match Pin::new(&mut reply).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(5)),
        }
    }
}

//! What comes to a simulated host: requests by chance, of tenants some of whom ask much more than others.
//!
//! Each tenant has a beginning that all of its texts share. More than half of the requests are turns of
//! chats, of which there is a fixed number: mostly of those that were spoken to lately, else of any, however
//! long ago. The others are asked once. A few have a deadline, and a few are left before they are done.

use super::chance::{Lengths, Random, Zipf, mix};
use corral_engine::Token;
use corral_engine::scheduler::{Tenant, Time};
use corral_engine::simulator::POISON;
use std::collections::VecDeque;
use std::time::Duration;

/// Most tokens that a request asks for, and that a text has.
pub(super) const MOST_ANSWER: u32 = 512;
pub(super) const LONGEST: u32 = 4096;

const BEGINNING: Lengths = Lengths {
    median: 150.0,
    spread: 0.8,
    least: 0,
    most: 1000,
};
/// What a chat had before the simulation, behind its beginning.
const HISTORY: Lengths = Lengths {
    median: 300.0,
    spread: 0.8,
    least: 16,
    most: 1500,
};
const PROMPT: Lengths = Lengths {
    median: 60.0,
    spread: 1.0,
    least: 4,
    most: 1500,
};
const ANSWER: Lengths = Lengths {
    median: 100.0,
    spread: 0.8,
    least: 1,
    most: MOST_ANSWER,
};

/// Which part of the requests are turns of a chat; and of those, of one spoken to lately.
const TURNS: f64 = 0.6;
const LATELY: f64 = 0.7;
/// Chats that were spoken to lately.
const RECENT: usize = 64;
/// Which part of the requests are left, after how many seconds in the mean.
const LEFT: (f64, f64) = (0.03, 10.0);
/// Which part of them has a deadline, and how long after they came.
const DUE: (f64, Duration) = (0.1, Duration::from_secs(120));

/// A text of a tenant: its tokens follow from this, so they need not be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub tenant: Tenant,
    /// Tokens that all texts of the tenant begin with.
    beginning: u32,
    /// What comes behind them is its own.
    number: u64,
}

/// Tells the numbers of tenants' beginnings from those of texts.
const TENANTS: u64 = 1 << 48;

impl Text {
    /// The token at a position.
    pub fn token(&self, position: u32) -> Token {
        let of = if position < self.beginning {
            TENANTS + u64::from(self.tenant.0)
        } else {
            self.number
        };
        let token = mix(mix(of) ^ u64::from(position)) % u64::from(POISON);
        Token::try_from(token).unwrap_or(0)
    }

    /// Its first tokens.
    pub fn tokens(&self, length: u32) -> Vec<Token> {
        (0..length).map(|position| self.token(position)).collect()
    }

    /// Tokens that it has before anybody asked anything.
    pub fn beginning(&self) -> u32 {
        self.beginning
    }
}

/// A request that comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub at: Time,
    pub tenant: Tenant,
    /// Which chat it is a turn of.
    pub chat: Option<usize>,
    /// Tokens of the prompt behind what there is of the text.
    pub prompt: u32,
    /// Tokens after which its answer ends.
    pub answer: u32,
    /// After how long its caller goes away.
    pub leaves: Option<Duration>,
    /// By when it is worth nothing any more.
    pub deadline: Option<Time>,
}

/// Makes arrivals without end.
#[derive(Debug)]
pub(super) struct Workload {
    random: Random,
    tenants: Zipf,
    /// Seconds between two of them, in the mean.
    interval: f64,
    last: Time,
    /// Whose each chat is.
    chats: Vec<Tenant>,
    recent: VecDeque<usize>,
    /// Texts that were made.
    texts: u64,
    seed: u64,
}

impl Workload {
    /// At `rate` requests a second, with so many chats.
    pub fn new(seed: u64, rate: f64, tenants: u64, chats: usize) -> Self {
        let mut random = Random::new(seed);
        let tenants = Zipf::new(tenants);
        let chats = (0..chats).map(|_| tenant(&tenants, &mut random)).collect();
        Self {
            random,
            tenants,
            interval: 1.0 / rate,
            last: Time::ZERO,
            chats,
            recent: VecDeque::with_capacity(RECENT),
            texts: 0,
            seed,
        }
    }

    /// Whose each chat is.
    pub fn chats(&self) -> &[Tenant] {
        &self.chats
    }

    /// A text of a tenant that nobody had before.
    pub fn text(&mut self, tenant: Tenant) -> Text {
        self.texts += 1;
        // The same for all texts of the tenant.
        let mut own = Random::new(self.seed ^ mix(TENANTS + u64::from(tenant.0)));
        Text {
            tenant,
            beginning: BEGINNING.draw(&mut own),
            number: self.texts,
        }
    }

    /// Tokens that a chat had before the simulation, behind its beginning.
    pub fn history(&mut self) -> u32 {
        HISTORY.draw(&mut self.random)
    }

    /// The next request: never before the one that was made last.
    pub fn arrival(&mut self) -> Arrival {
        self.last += self.random.wait(self.interval);
        let chat = self.random.happens(TURNS).then(|| self.chat()).flatten();
        let tenant = match chat.and_then(|chat| self.chats.get(chat)) {
            Some(&tenant) => tenant,
            None => tenant(&self.tenants, &mut self.random),
        };
        let prompt = PROMPT.draw(&mut self.random);
        let answer = ANSWER.draw(&mut self.random);
        let leaves = self.random.happens(LEFT.0);
        let leaves = leaves.then(|| self.random.wait(LEFT.1));
        let due = self.random.happens(DUE.0);
        Arrival {
            at: self.last,
            tenant,
            chat,
            prompt,
            answer,
            leaves,
            deadline: due.then_some(self.last + DUE.1),
        }
    }

    /// The chat that is spoken to next.
    fn chat(&mut self) -> Option<usize> {
        let lately = self.random.happens(LATELY) && !self.recent.is_empty();
        let among = if lately {
            self.recent.len()
        } else {
            self.chats.len()
        };
        let place = self.random.below(among as u64);
        let place = usize::try_from(place).unwrap_or(0);
        if lately {
            return self.recent.get(place).copied();
        }
        if place >= self.chats.len() {
            return None;
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(place);
        Some(place)
    }
}

fn tenant(tenants: &Zipf, random: &mut Random) -> Tenant {
    Tenant(u32::try_from(tenants.draw(random)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_their_rate_and_fit_a_sequence() {
        let mut workload = Workload::new(5, 4.0, 100, 50);
        let mut turns = 0;
        let mut last = Time::ZERO;
        for _ in 0..20_000 {
            let arrival = workload.arrival();
            assert!(arrival.at >= last);
            last = arrival.at;
            turns += u32::from(arrival.chat.is_some());
            if let Some(chat) = arrival.chat {
                assert_eq!(workload.chats()[chat], arrival.tenant);
            }
            let text = workload.text(arrival.tenant);
            let all = text.beginning() + arrival.prompt + MOST_ANSWER;
            assert!(all <= LONGEST && arrival.prompt > 0 && arrival.answer > 0);
        }
        let rate = 20_000.0 / last.as_secs_f64();
        assert!((3.8..4.2).contains(&rate), "{rate}");
        assert!((11_500..12_500).contains(&turns), "{turns}");
    }

    #[test]
    fn texts_of_a_tenant_share_their_beginning_and_nothing_else() {
        let mut workload = Workload::new(5, 1.0, 100, 0);
        let [one, other] = [(); 2].map(|()| workload.text(Tenant(3)));
        let stranger = workload.text(Tenant(4));
        let shared = one.beginning();
        assert_eq!(shared, other.beginning());
        let (one, other) = (one.tokens(shared + 100), other.tokens(shared + 100));
        let same = |a: &[Token], b: &[Token]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        assert!(same(&one, &other) < shared as usize + 10);
        assert_eq!(one[..shared as usize], other[..shared as usize]);
        assert!(same(&one, &stranger.tokens(shared + 100)) < 20);
        assert!(one.iter().all(|&token| token < POISON));
    }
}

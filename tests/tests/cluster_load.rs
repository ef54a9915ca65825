//! A cluster of three hosts under load: deployments change while a host is killed, stopped, cut off from NATS or suspended. No
//! acknowledged change is lost, no answer is wrong, and no request fails but those to a killed host.

use corral_tests::cluster::{project_of, status_of};
use corral_tests::deployments::{deploy_plugin, show, variant};
use corral_tests::{
    Corral, Load, Nats, Proxy, SetOnDrop, TIMEOUT, artifacts, scratch_dir, seed, wait_for,
    wait_until,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const HOSTS: usize = 3;
const ALL: [usize; HOSTS] = [0, 1, 2];
const PARTITION_TIME: Duration = Duration::from_secs(30);
const SUSPEND_TIME: Duration = Duration::from_secs(5);
/// Seconds that a router has to notice that a host stops.
const DRAIN_DELAY: &str = "5";
/// Each list of hosts occupies NATS for some seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An acknowledged deploy.
#[derive(Clone, Copy)]
struct Deployed {
    revision: u64,
    version: u64,
    /// Hosts for which the command has waited.
    hosts: usize,
}

impl Deployed {
    fn read(output: &str, version: u64) -> Self {
        let number_after = |text: &str| {
            let (_, rest) = output.split_once(text)?;
            let digits = rest.split(|next: char| !next.is_ascii_digit()).next();
            digits?.parse::<u64>().ok()
        };
        Deployed {
            revision: number_after("deployed revision ").expect(output),
            version,
            hosts: number_after("\nall ").unwrap_or(0) as usize,
        }
    }
}

/// The hosts, each with a network of its own to NATS.
struct Cluster {
    hosts: Vec<Corral>,
    stores: [PathBuf; HOSTS],
    proxies: [Proxy; HOSTS],
    _nats: Nats,
    load: Load,
    component: Vec<u8>,
    deployed: Vec<Deployed>,
}

fn start(store: &Path, proxy: &Proxy, address: &str) -> Corral {
    let url = format!("nats://127.0.0.1:{}", proxy.port());
    let cluster = ["--preload", "none", "--cluster", &url];
    let network = ["--listen", address, "--drain-delay", DRAIN_DELAY];
    Corral::start_in(store, &[cluster, network].concat())
}

impl Cluster {
    fn start() -> Self {
        let nats = Nats::start();
        let stores = [(); HOSTS].map(|()| scratch_dir());
        let proxies = [(); HOSTS].map(|()| Proxy::start(nats.port()));
        let hosts = std::array::from_fn::<_, HOSTS, _>(|number| {
            let address = format!("127.0.0.{}:0", 11 + number);
            start(&stores[number], &proxies[number], &address)
        });
        let load = Load::new(&hosts);
        let mut cluster = Cluster {
            hosts: hosts.into(),
            stores,
            proxies,
            _nats: nats,
            load,
            component: artifacts::component("misbehave"),
            deployed: Vec::new(),
        };
        deploy_plugin(&cluster.hosts[0], "sums", "generate", json!({}));
        for host in &cluster.hosts {
            let body = json!({"prompt": "1+1=", "max_tokens": 20}).to_string();
            wait_until("the sums", || host.post("/sums", &body).status == 200);
        }
        for _ in 0..2 {
            let deployed = cluster.deploy(0, &["--wait"]);
            cluster.deployed.push(deployed);
            cluster.settle(0, &ALL);
        }
        cluster
    }

    /// The version of the record that a host serves.
    fn version(&self, host: usize) -> u64 {
        let host = &self.hosts[host];
        let status = status_of(host, host).expect("its own");
        status["deployments"]["x"]["version"].as_u64().unwrap_or(0)
    }

    /// Waits until these hosts serve what the host `by` serves, which is the newest.
    fn settle(&self, by: usize, hosts: &[usize]) {
        let newest = self.version(by);
        for &host in hosts {
            wait_for("the newest record", || {
                if self.version(host) >= newest {
                    return Some(());
                }
                thread::sleep(POLL_INTERVAL);
                None
            });
        }
        self.load.confirm(hosts);
    }

    /// Sends a change until it is acknowledged.
    fn change(&self, by: usize, arguments: &[&str]) -> String {
        let output = wait_for("the change", || {
            let ended = self.hosts[by].cli(arguments);
            if ended.code == Some(0) {
                return Some(ended.stdout);
            }
            // NATS may be slow on a busy machine; a change of a killed host may arrive late.
            let passing = ["the cluster's store", "NATS did not confirm", "came first"];
            let may_pass = passing.iter().any(|text| ended.stderr.contains(text));
            assert!(may_pass, "{ended:?}");
            eprintln!("refused: {}", ended.stderr);
            None
        });
        self.load.confirm(&[by]);
        output
    }

    /// Begins a deploy. Returns its version, and the directory to deploy.
    fn begin_deploy(&self) -> (u64, String) {
        let version = self.load.next_state();
        self.load.begin(&[version]);
        // Two components in turn, which all hosts have compiled before the load: it would slow compilations down too much.
        let component = variant(&self.component, version % 2);
        let project = project_of(&component, "x", version, "");
        (version, project.to_str().expect("UTF-8").to_owned())
    }

    fn deploy(&self, by: usize, options: &[&str]) -> Deployed {
        let (version, project) = self.begin_deploy();
        let output = self.change(by, &[&["deploy", &project], options].concat());
        Deployed::read(&output, version)
    }

    /// The live hosts serve a deploy, if the command has waited for all of them, and otherwise soon.
    fn confirm(&self, deployed: Deployed, by: usize, live: &[usize]) {
        match deployed.hosts >= live.len() {
            true => self.load.confirm(live),
            false => self.settle(by, live),
        }
    }

    /// Deploys, rolls back and splits through the live hosts, which serve each change before the next begins.
    fn make_changes(&mut self, live: &[usize], options: &[&str]) {
        let [by_1, by_2, by_3] = [0, 1, 2].map(|number| live[number % live.len()]);
        let newest = self.deploy(by_1, options);
        self.confirm(newest, by_1, live);
        let before = *self.deployed.last().expect("the first deploy");
        self.deployed.push(newest);
        let [old, new] = [before, newest].map(|deployed| deployed.revision);
        self.load.begin(&[before.version]);
        self.change(by_2, &["rollback", "x", "--revision", &old.to_string()]);
        self.settle(by_2, live);
        self.load.begin(&[before.version, newest.version]);
        self.change(
            by_3,
            &["split", "x", &format!("{old}=1"), &format!("{new}=3")],
        );
        self.settle(by_3, live);
    }

    fn restart(&mut self, host: usize) {
        let address = self.hosts[host].public().to_owned();
        self.hosts[host] = start(&self.stores[host], &self.proxies[host], &address);
        self.load.set_up(host);
    }

    /// Kills a host at a moment of its deploy, or right after it has acknowledged the deploy.
    fn kill(&mut self, victim: usize, others: &[usize], moment: Duration) {
        let (version, project) = self.begin_deploy();
        let host = &self.hosts[victim];
        let ended = thread::scope(|scope| {
            let deploy = scope.spawn(|| host.cli(&["deploy", &project]));
            let began = Instant::now();
            while !deploy.is_finished() && began.elapsed() < moment {
                thread::sleep(Duration::from_millis(1));
            }
            self.load.set_down(victim);
            host.signal("KILL");
            deploy.join().expect("no panic")
        });
        self.hosts[victim].wait();
        if ended.code == Some(0) {
            self.deployed.push(Deployed::read(&ended.stdout, version));
        }
        self.make_changes(others, &[]);
        self.restart(victim);
        self.settle(others[0], &ALL);
        let code = ended.code;
        self.load
            .check(&format!("killed, exit code of its deploy {code:?}"));
    }

    /// Stops a host with SIGTERM, which the router notices.
    fn stop(&mut self, host: usize, others: &[usize]) {
        self.hosts[host].signal("TERM");
        wait_until("the host to be unready", || {
            self.hosts[host].get("/readyz").status != 200
        });
        self.load.set_off(host);
        self.make_changes(others, &["--wait"]);
        self.hosts[host].wait_for_success();
        self.restart(host);
        self.settle(others[0], &ALL);
        self.load.check("stopped");
    }

    /// Cuts a host off from NATS.
    fn cut_off(&mut self, host: usize, others: &[usize]) {
        let began = Instant::now();
        let before = self.load.counts(host).answered;
        self.proxies[host].cut();
        let refuse = |host: &Corral| {
            let refused = host.cli(&["pause", "x"]);
            refused.check_error(1, &["it serves what it has, and takes no changes"]);
        };
        refuse(&self.hosts[host]);
        self.make_changes(others, &["--wait"]);
        self.hosts[host].wait_until("the loss of the connection", |metrics| {
            metrics.get("corral_cluster_connected") == 0.0
        });
        refuse(&self.hosts[host]);
        thread::sleep(PARTITION_TIME.saturating_sub(began.elapsed()));
        let answered = self.load.counts(host).answered;
        assert!(answered > before, "it served nothing");
        self.proxies[host].repair();
        self.settle(others[0], &ALL);
        self.load.check("cut off");
    }

    /// Suspends a host, for which a deploy waits.
    fn suspend(&mut self, host: usize, by: usize) {
        self.hosts[host].stop();
        let deployed = thread::scope(|scope| {
            let deploy = scope.spawn(|| self.deploy(by, &["--wait"]));
            thread::sleep(SUSPEND_TIME);
            self.hosts[host].signal("CONT");
            deploy.join().expect("no panic")
        });
        self.confirm(deployed, by, &ALL);
        self.deployed.push(deployed);
        self.load.check("suspended");
    }

    /// Asserts that all hosts have the same changes, and among them all that were acknowledged.
    fn check_end(&self) {
        let newest = self.version(0);
        let first = show(&self.hosts[0], "x");
        let traffic = |shown: &Value| {
            let shares = shown["deployment"]["traffic"].as_array().expect("a list");
            let share = |share: &Value| [&share["revision"], &share["weight"]].map(Value::as_u64);
            Vec::from_iter(shares.iter().map(share))
        };
        let split = &self.deployed[self.deployed.len() - 2..];
        let split = [(split[0].revision, 1), (split[1].revision, 3)];
        let split = split.map(|(revision, weight)| [Some(revision), Some(weight)]);
        let revisions = first["revisions"].as_array().expect("a list");
        for deployed in &self.deployed {
            let mut revisions = revisions.iter();
            let found = revisions.find(|one| one["number"] == deployed.revision);
            let found = found.unwrap_or_else(|| panic!("{} is lost: {first}", deployed.revision));
            let version = &found["manifest"]["configuration"]["VERSION"];
            assert_eq!(*version, deployed.version.to_string());
        }
        for host in &self.hosts {
            let shown = show(host, "x");
            assert_eq!(shown["revisions"], first["revisions"]);
            assert_eq!(traffic(&shown), split);
            for of in &self.hosts {
                wait_for("its status", || {
                    thread::sleep(POLL_INTERVAL);
                    let status = status_of(of, host)?;
                    (status["deployments"]["x"]["version"] == newest).then_some(())
                });
            }
            let metrics = host.wait_until_idle();
            assert_eq!(metrics.get("corral_cluster_deployments_behind"), 0.0);
            assert_eq!(metrics.get("corral_plugin_calls_failed_total"), 0.0);
        }
    }
}

#[test]
fn changes_under_load_survive_faults_of_hosts() {
    let mut random = ChaCha8Rng::seed_from_u64(seed());
    let mut cluster = Cluster::start();
    let load = cluster.load.clone();
    let began = Instant::now();
    let sent = thread::scope(|scope| {
        let clients = scope.spawn(|| load.run());
        let end = SetOnDrop(load.is_over());
        cluster.make_changes(&ALL, &["--wait"]);
        load.check("without faults");
        cluster.kill(0, &[1, 2], TIMEOUT);
        let moment = Duration::from_millis(random.random_range(0..500));
        cluster.kill(1, &[2, 0], moment);
        cluster.stop(2, &[0, 1]);
        cluster.cut_off(1, &[2, 0]);
        cluster.suspend(0, 1);
        cluster.make_changes(&ALL, &["--wait"]);
        drop(end);
        clients.join().expect("no panic")
    });
    let seconds = began.elapsed().as_secs_f64();
    load.check("all");
    let counts = ALL.map(|host| load.counts(host));
    assert!(counts.iter().all(|counts| counts.answered > 0));
    let counted = counts.map(|counts| counts.answered + counts.failed);
    assert_eq!(counted.iter().sum::<usize>(), sent, "each counts once");
    cluster.check_end();
    let (rate, deploys) = (sent as f64 / seconds, cluster.deployed.len());
    eprintln!(
        "{sent} requests in {seconds:.0} s, {rate:.0} a second; {deploys} acknowledged deploys"
    );
}

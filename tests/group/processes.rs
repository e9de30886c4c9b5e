//! Ranks that are processes: this program starts itself, with one test that acts as a rank.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use einsparse::formats::Dense;
use einsparse::group::{Group, GroupSum};
use einsparse::{Context, Error, Result};

use crate::support::assert_error;

const ROLE: &str = "EINSPARSE_TEST_RANK";
/// Time within which every rank must get the error.
const KNOWN: Duration = Duration::from_secs(10);

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts another rank of this group: its role, its rank and the number of ranks.
fn start(id: &[u8], role: &str, rank: usize, size: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "group::processes::a_rank", "--nocapture"])
        .env(ROLE, format!("{role} {rank} {size} {}", hex(id)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Body of a started rank. Returns at once if this program was started as usual.
#[test]
fn a_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.split(' ');
    let mut word = || words.next().unwrap();
    let (role, rank, size) = (word().to_owned(), word().parse().unwrap(), word().parse().unwrap());
    let id: Vec<u8> = word()
        .as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect();
    let group = Group::join(&Context::unchecked_cpu(), &id, rank, size, KNOWN).unwrap();
    match role.as_str() {
        "killed" => {
            group.barrier().unwrap();
            std::process::abort()
        }
        // The parent process stops this rank.
        "stopped" => {
            group.barrier().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        _ => {
            let ends = Instant::now() + 3 * KNOWN;
            // The other rank may end before this barrier does.
            let mut state = group.barrier();
            while state.is_ok() {
                assert!(Instant::now() < ends, "the group never ended");
                state = work(&group);
            }
            std::process::exit(17)
        }
    }
}

/// Runs a sum over ranks, and checks it.
fn work(group: &Group) -> Result<()> {
    let context = group.context();
    let mut tensor = context.upload_dense(&Dense::new([4], vec![group.rank() as f32; 4])?)?;
    GroupSum::new(group, &[4])?.run(&mut tensor, &context.stream()?)?;
    let size = group.size();
    assert_eq!(tensor.to_dense()?.values(), [(size * (size - 1) / 2) as f32; 4]);
    Ok(())
}

fn outcome(mut child: Child) -> Option<i32> {
    let end = Instant::now() + 2 * KNOWN;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < end, "a rank hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_ends_all_others() {
    let id = Group::unique_id().unwrap();
    let killed = start(&id, "killed", 1, 3);
    let other = start(&id, "works", 2, 3);
    let group = Group::join(&Context::unchecked_cpu(), &id, 0, 3, KNOWN).unwrap();
    let mut state = group.barrier();
    let before = Instant::now();
    let error = loop {
        match state {
            Ok(()) => state = work(&group),
            Err(error) => break error,
        }
    };
    assert!(before.elapsed() < KNOWN);
    assert_error!(error, Error::Rank { .. });
    assert_eq!(outcome(other), Some(17));
    assert_eq!(outcome(killed), None);
    // The group remains failed.
    assert!(group.barrier().is_err());
}

#[test]
fn a_stopped_rank_ends_all_others() {
    let id = Group::unique_id().unwrap();
    let mut stopped = start(&id, "stopped", 1, 2);
    let group = Group::join(&Context::unchecked_cpu(), &id, 0, 2, KNOWN).unwrap();
    group.barrier().unwrap();
    let signal = |name: &str| {
        let kill = Command::new("kill").args([name, &stopped.id().to_string()]).status();
        assert!(kill.unwrap().success());
    };
    signal("-STOP");
    let before = Instant::now();
    let error = work(&group).unwrap_err();
    assert!(before.elapsed() < KNOWN, "{:?}", before.elapsed());
    assert_error!(error, Error::Rank { rank: 1, .. });
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let second = Duration::from_secs(1);
    let join = |id: &[u8], rank, size| {
        Group::join(&Context::unchecked_cpu(), id, rank, size, second).map(drop).unwrap_err()
    };
    let id = Group::unique_id().unwrap();
    assert_error!(join(&id, 0, 3), Error::Rank { rank: 1, .. });
    // Rank 0 no longer listens at its address.
    assert_error!(join(&id, 1, 3), Error::Rank { rank: 0, .. });
    assert_error!(join(&id, 3, 3), Error::Rank { rank: 3, .. });
    for wrong in [&b"none"[..], &[0; 64], &[b'x'; 65]] {
        assert_error!(join(wrong, 0, 1), Error::OutOfRange { .. } | Error::Operand { .. });
    }
    assert_error!(join(&id, 0, usize::MAX), Error::Overflow { limit: 65536, .. });
    let id = Group::unique_id().unwrap();
    assert!(Group::join(&Context::unchecked_cpu(), &id, 0, 1, Duration::MAX).is_ok());
}

/// Address at which rank 0 of an id listens. The port and the host follow 16 bytes of the token.
fn address_of(id: &[u8; 64]) -> SocketAddr {
    let host = String::from_utf8_lossy(&id[18..]).into_owned();
    let host = host.trim_end_matches('\0').parse().unwrap();
    SocketAddr::new(host, u16::from_le_bytes([id[16], id[17]]))
}

#[test]
fn rank_0_listens_at_one_address_of_the_machine() {
    let id = Group::unique_id().unwrap();
    let address = address_of(&id);
    assert!(!address.ip().is_unspecified() && TcpStream::connect(address).is_ok());
    for other in ["127.0.0.2", "127.0.0.3"] {
        let other = SocketAddr::new(other.parse().unwrap(), address.port());
        assert!(TcpStream::connect(other).is_err(), "{other}");
    }
}

#[test]
fn ranks_with_another_token_do_not_join() {
    let id = Group::unique_id().unwrap();
    let mut other = id;
    other[0] ^= 1;
    let join = |id: [u8; 64], rank: usize| {
        Group::join(&Context::unchecked_cpu(), &id, rank, 2, Duration::from_secs(2)).map(drop)
    };
    let found = std::thread::spawn(move || join(other, 1));
    assert_error!(join(id, 0), Err(Error::Rank { rank: 1, .. }));
    assert_error!(found.join().unwrap(), Err(Error::Rank { rank: 0, .. }));
}

#[test]
fn strangers_and_doubles_are_sent_away() {
    let id = Group::unique_id().unwrap();
    // One connection sends bytes that no rank sends, the others send nothing; all stay open.
    let strangers: Vec<_> = (0..16).map(|_| TcpStream::connect(address_of(&id)).unwrap()).collect();
    (&strangers[0]).write_all(&[7; 64]).unwrap();
    let before = Instant::now();
    let join = |rank, size| Group::join(&Context::unchecked_cpu(), &id, rank, size, KNOWN);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| join(1, 2));
        let group = join(0, 2).unwrap();
        let other = others.join().unwrap().unwrap();
        let barrier = scope.spawn(move || other.barrier());
        group.barrier().unwrap();
        barrier.join().unwrap().unwrap();
    });
    assert!(before.elapsed() < Duration::from_secs(4), "{:?}", before.elapsed());
    for ranks in [[(1, 3), (1, 3)], [(1, 2), (2, 3)]] {
        let id = Group::unique_id().unwrap();
        let join = |rank, size| Group::join(&Context::unchecked_cpu(), &id, rank, size, KNOWN);
        std::thread::scope(|scope| {
            let others = ranks.map(|(rank, size)| scope.spawn(move || join(rank, size)));
            assert_error!(join(0, 3).map(drop), Err(Error::Rank { .. }));
            others.into_iter().for_each(|other| assert!(other.join().unwrap().is_err()));
        });
    }
}

#[test]
fn a_launcher_describes_the_group_in_the_environment() {
    // Environment variables are set for the child processes only, because other tests must not read them.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: usize, address: &str, port: String| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "group::processes::a_rank_of_a_launcher", "--nocapture"])
            .env("RANK", rank.to_string())
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .env_remove("EINSPARSE_TOKEN")
            .env("MASTER_ADDR", address)
            .env("MASTER_PORT", port)
            .env(ROLE, "launched")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    // The last address belongs to this machine only according to `LOCAL_WORLD_SIZE`.
    for address in ["127.0.0.1", "localhost", "192.0.2.1"] {
        let ranks = [0, 1].map(|r| rank(r, address, (port - 1).to_string()));
        assert_eq!(ranks.map(outcome), [Some(0); 2], "{address}");
    }
    assert_eq!(outcome(rank(0, "127.0.0.1", "no port".into())), Some(101));
}

#[test]
fn a_rank_of_a_launcher() {
    if std::env::var(ROLE).is_ok_and(|role| role == "launched") {
        work(&Group::from_env(&Context::unchecked_cpu()).unwrap()).unwrap();
    }
}

//! The group that a launcher describes in the environment.

use super::address::is_loopback;
use super::id::Id;
use super::token::{Secret, Token, TokenFile};
use crate::error::{Error, Result};

/// Environment variable with the secret of the group, chosen by the user.
const TOKEN: &str = "EINSPARSE_TOKEN";
/// Minimum length of the secret. Shorter texts can be guessed.
const MIN_TOKEN: usize = 16;

/// Parsed environment: address of the rendezvous, index of this rank, and number of ranks.
pub(super) struct Described {
    pub id: Id,
    pub rank: usize,
    pub size: usize,
}

impl Described {
    /// Parses the environment of this process.
    pub(super) fn here() -> Result<Described> {
        Described::of(&|name| {
            std::env::var_os(name).map(|text| text.to_string_lossy().into_owned())
        })
    }

    fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Described> {
        let needed = |name: &str| {
            variable(name).ok_or_else(|| Error::operand(name, "is not set in the environment"))
        };
        let (rank, size) =
            (number("RANK", &needed("RANK")?)?, number("WORLD_SIZE", &needed("WORLD_SIZE")?)?);
        let port = match variable("EINSPARSE_PORT") {
            Some(text) => port("EINSPARSE_PORT", &text, 0)?,
            None => port("MASTER_PORT", &needed("MASTER_PORT")?, 1)?,
        };
        let on_machine = variable("LOCAL_WORLD_SIZE").map(|text| number("LOCAL_WORLD_SIZE", &text));
        let mut host = needed("MASTER_ADDR")?.trim().to_owned();
        let mut local = size == 1 || is_loopback(&host);
        let given = variable(TOKEN);
        if !local && given.is_none() && on_machine.transpose()? == Some(size) {
            // All ranks are on this machine, so loopback suffices.
            host = "127.0.0.1".into();
            local = true;
        }
        let secret = match given {
            Some(text) if text.trim().len() < MIN_TOKEN => {
                let found = format!("{} characters. {HOW}", text.trim().len());
                return Err(Error::range(TOKEN, found, format!("at least {MIN_TOKEN} characters")));
            }
            Some(text) => Secret::Given(Token::of_text(text.trim())),
            None if local => Secret::Shared(TokenFile::at_port(port)),
            None => {
                let reason = format!(
                    "is not set, and ranks meet at MASTER_ADDR `{host}`, which other machines can reach. {HOW}. If all \
                     ranks are on this machine, set LOCAL_WORLD_SIZE to {size} as well, or MASTER_ADDR to 127.0.0.1"
                );
                return Err(Error::operand(TOKEN, reason));
            }
        };
        let id = Id { host, port, secret };
        Ok(Described { id, rank, size })
    }
}

const HOW: &str =
    "Set it to the same secret text for all ranks, such as what `openssl rand -hex 16` prints";

fn number(name: &str, text: &str) -> Result<usize> {
    let number = text.trim().parse::<usize>();
    number.map_err(|_| Error::range(name, format!("`{text}`"), "a number"))
}

/// The port of a variable, plus an offset.
fn port(name: &str, text: &str, offset: usize) -> Result<u16> {
    let last = usize::from(u16::MAX) - offset;
    let number = number(name, text)?;
    match u16::try_from(number.saturating_add(offset)) {
        Ok(port) if port > 0 => Ok(port),
        _ => {
            let first = usize::from(offset == 0);
            Err(Error::range(name, number, format!("a port from {first} to {last}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Described> {
        let own = [
            ("RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        let all: Vec<_> = variables.iter().chain(&own).collect();
        Described::of(&|name| {
            let found = all.iter().find(|(own, _)| *own == name)?;
            (found.1 != "none").then(|| found.1.to_owned())
        })
    }

    fn error(variables: &[(&str, &str)]) -> String {
        of(variables).map(|found| found.id).unwrap_err().to_string()
    }

    #[test]
    fn ranks_of_one_machine_need_no_token() {
        for variables in [
            &[][..],
            &[("MASTER_ADDR", "localhost")],
            &[("MASTER_ADDR", "::1")],
            &[("MASTER_ADDR", "192.0.2.1"), ("LOCAL_WORLD_SIZE", "4")],
            &[("MASTER_ADDR", "192.0.2.1"), ("WORLD_SIZE", "1")],
        ] {
            let found = of(variables).unwrap();
            assert!(matches!(found.id.secret, Secret::Shared(_)), "{variables:?}");
            assert!(found.size == 1 || is_loopback(&found.id.host), "{variables:?}");
            assert_eq!(found.id.port, 29501);
        }
    }

    #[test]
    fn ranks_of_several_machines_need_a_token() {
        let far = ("MASTER_ADDR", "192.0.2.1");
        for variables in [
            &[far][..],
            &[far, ("LOCAL_WORLD_SIZE", "2")],
            &[("MASTER_ADDR", "no.such.host.invalid")],
        ] {
            let error = error(variables);
            assert!(error.contains("`EINSPARSE_TOKEN`: is not set, and ranks meet at"), "{error}");
            assert!(error.contains("openssl rand -hex 16"), "{error}");
        }
        let short = error(&[far, ("EINSPARSE_TOKEN", " secret ")]);
        assert!(short.contains("at least 16 characters, got 6 characters"), "{short}");
        let [one, same, other] =
            ["a secret of a group", " a secret of a group\n", "a secret of another"].map(|token| {
                match of(&[far, ("EINSPARSE_TOKEN", token)]).unwrap().id.secret {
                    Secret::Given(token) => token,
                    Secret::Shared(_) => panic!("a token is given"),
                }
            });
        assert!(one == same && one != other);
    }

    #[test]
    fn variables_that_are_wrong_are_named() {
        for (variable, text, wanted) in [
            ("RANK", "none", "`RANK`: is not set in the environment"),
            ("MASTER_ADDR", "none", "`MASTER_ADDR`: is not set in the environment"),
            ("WORLD_SIZE", "two", "`WORLD_SIZE` must be a number, got `two`"),
            ("MASTER_PORT", "65535", "`MASTER_PORT` must be a port from 0 to 65534, got 65535"),
            ("MASTER_PORT", "18446744073709551615", "must be a port from 0 to 65534"),
            ("EINSPARSE_PORT", "0", "`EINSPARSE_PORT` must be a port from 1 to 65535, got 0"),
            ("EINSPARSE_PORT", "70000", "must be a port from 1 to 65535"),
        ] {
            let found = error(&[(variable, text)]);
            assert!(found.contains(wanted), "{found}");
        }
        assert_eq!(of(&[("EINSPARSE_PORT", "65535")]).unwrap().id.port, 65535);
    }
}

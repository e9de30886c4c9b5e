//! EINSPARSE_ARCH: tests run the kernels of other GPUs on the GPU of this machine.

use einsparse_kernels::table::ARCHS;

use super::shared_bytes;
use crate::error::{Error, Result};
use crate::machine::Machine;

/// Compute capability whose kernels run: that of the GPU, or that of EINSPARSE_ARCH.
pub(super) fn capability(own: (u32, u32)) -> Result<(u32, u32)> {
    let Some(capability) = asked_capability()? else {
        return Ok(own);
    };
    if capability > own {
        let [(major, minor), asked] = [own, capability];
        return Err(refusal(format!(
            "EINSPARSE_ARCH is `sm_{}{}`: this GPU has compute capability {major}.{minor} and runs kernels of at most that; \
             unset EINSPARSE_ARCH to run its own",
            asked.0, asked.1
        )));
    }
    Ok(without_exact(capability))
}

fn refusal(reason: String) -> Error {
    Error::cuda("choose device code", reason)
}

/// Compute capability that EINSPARSE_ARCH names.
///
/// # Errors
/// If the value names no compute capability.
pub fn asked_capability() -> Result<Option<(u32, u32)>> {
    let Ok(asked) = std::env::var("EINSPARSE_ARCH") else {
        return Ok(None);
    };
    let number = asked.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
    let number = number.filter(|number| (80..1000).contains(number)).ok_or_else(|| {
        refusal(format!("EINSPARSE_ARCH is `{asked}`: expected `sm_80`, `sm_86` and the like"))
    })?;
    Ok(Some((number / 10, number % 10)))
}

/// Compute capability that has the same kernels, except those that run only on GPUs of exactly this capability: 9.1 for
/// 9.0, because an exact architecture runs on an equal capability only.
fn without_exact(capability: (u32, u32)) -> (u32, u32) {
    let exact = ARCHS.iter().any(|arch| arch.exact && arch.capability == capability);
    (capability.0, capability.1 + u32::from(exact))
}

/// Rates of an H200, with the kernels that EINSPARSE_ARCH selects, or those of an H200 if EINSPARSE_ARCH is invalid.
pub(super) fn absent() -> Machine {
    let Ok(Some(asked)) = asked_capability() else {
        return Machine::H200;
    };
    let capability = without_exact(asked);
    Machine::H200
        .with_capability(capability)
        .with_shared_bytes(shared_bytes(capability, Machine::H200.shared_bytes))
}

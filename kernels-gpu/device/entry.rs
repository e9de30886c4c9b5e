//! Kernel entries of the module that is compiled, expanded from the table of rows; and the panic handler.

// A build of some rows passes the name of each of them as a `cfg`.
#![allow(unexpected_cfgs)]

use super::gpu::kernel;
use super::kernel::Kernel;
use crate::abi::*;
use crate::families::*;
use crate::for_each_kernel;

macro_rules! entries {
    ($($family:ident {
        $($module:tt $params:ident $operation:ident { $($($name:ident $elem:ident),+: $walk:ident, $tile:ty;)+ })+
    })+) => {
        $($(
            #[cfg(any(module = $module, not(target_arch = "nvptx64")))]
            const _: () = {
                $($(
                    // With `some_rows`, only the named rows are compiled.
                    #[cfg(any(not(some_rows), $name))]
                    kernel!($name(p: $params, at) => <$tile as Kernel<$walk, $elem, $params>>::run(&p, at));
                )+)+
            };
        )+)+
    };
}

for_each_kernel!(entries);

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: a trap ends the kernel; a test checks that no kernel contains it.
    unsafe { core::arch::nvptx::trap() }
}

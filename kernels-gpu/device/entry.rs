//! The table expanded to kernel entries of the module being compiled, and the panic handler.

// The name of every row is a `cfg`.
#![allow(unexpected_cfgs)]

use super::gpu::kernel;
use super::kernel::Kernel;
use crate::abi::*;
use crate::families::*;
use crate::for_each_kernel;

macro_rules! entries {
    ($($family:ident {
        $($module:ident $cfg:tt $params:ident $operation:ident { $($name:ident: $walk:ident, $elem:ident, $tile:ty;)+ })+
    })+) => {
        $($(
            #[cfg(any(module = $cfg, not(target_arch = "nvptx64")))]
            mod $module {
                use super::*;
                $(
                    // A build of some rows names each.
                    #[cfg(any(not(some_rows), $name))]
                    kernel!($name(p: $params, at) => <$tile as Kernel<$walk, $elem, $params>>::run(&p, at));
                )+
            }
        )+)+
    };
}

for_each_kernel!(entries);

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: a trap ends the kernel; a test proves that no kernel reaches it.
    unsafe { core::arch::nvptx::trap() }
}

//! Detection of the nonempty parts of an operand. The kernels are in `kernels-gpu/families/discover`.

pub(crate) mod channels;
pub(crate) mod cost;
pub(crate) mod detect;
pub(crate) mod live_rows;
pub(crate) mod route;
pub(crate) mod router;
pub(crate) mod transpose;

pub(crate) use channels::ChannelsLaunch;
pub use detect::{DetectLaunch, DeviceLists, Looked, stride as list_stride};
pub use live_rows::{LiveProduct, PackLaunch, Rows};
pub use route::{DeviceRoutes, GateLaunch, RouteLaunch, SumLaunch, WeighLaunch};
pub use router::RouterLaunch;
pub(crate) use transpose::TransposeLaunch;

//! Kernel table of the family `conv2d`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_conv2d {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            conv2d {
                "conv2d" Conv2dParams Own {
                    depthwise_f32_s1_x4 F32, depthwise_f16_s1_x4 F16, depthwise_bf16_s1_x4 Bf16: Direct, Depthwise<4, 1>;
                    depthwise_f32_s1 F32, depthwise_f16_s1 F16, depthwise_bf16_s1 Bf16: Direct, Depthwise<1, 1>;
                    depthwise_f32_s2_x4 F32, depthwise_f16_s2_x4 F16, depthwise_bf16_s2_x4 Bf16: Direct, Depthwise<4, 2>;
                    depthwise_f32_s2 F32, depthwise_f16_s2 F16, depthwise_bf16_s2 Bf16: Direct, Depthwise<1, 2>;
                    depthwise_f32_any F32, depthwise_f16_any F16, depthwise_bf16_any Bf16: Direct, DepthwiseAny;
                    depthwise_f32_plane F32, depthwise_f16_plane F16, depthwise_bf16_plane Bf16: Direct, DepthwisePlane;
                    few_channels_f32_k3 F32, few_channels_f16_k3 F16, few_channels_bf16_k3 Bf16: Direct, FewChannels<3>;
                    few_channels_f32_k7 F32, few_channels_f16_k7 F16, few_channels_bf16_k7 Bf16: Direct, FewChannels<7>;
                }
            }
        }
    };
}

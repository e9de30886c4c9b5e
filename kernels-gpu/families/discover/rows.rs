//! The rows of the family `discover`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_discover {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            discover {
                detect "detect" DetectParams Detection {
                    detect_16_128x1: Direct, F16, MicroTiles<128, 1, STEP_TILES>;
                    detect_16_64x1: Direct, F16, MicroTiles<64, 1, STEP_TILES>;
                    detect_16_32x1: Direct, F16, MicroTiles<32, 1, STEP_TILES>;
                    detect_16_16x16: Direct, F16, MicroTiles<16, 16, STEP_TILES>;
                    detect_16_1x32: Direct, F16, MicroTiles<1, 32, STEP_TILES>;
                    detect_16_1x64: Direct, F16, MicroTiles<1, 64, STEP_TILES>;
                    detect_32_128x1: Direct, F32, MicroTiles<128, 1, STEP_TILES>;
                    detect_32_64x1: Direct, F32, MicroTiles<64, 1, STEP_TILES>;
                    detect_32_32x1: Direct, F32, MicroTiles<32, 1, STEP_TILES>;
                    detect_32_16x16: Direct, F32, MicroTiles<16, 16, STEP_TILES>;
                    detect_32_1x32: Direct, F32, MicroTiles<1, 32, STEP_TILES>;
                    detect_32_1x64: Direct, F32, MicroTiles<1, 64, STEP_TILES>;
                    detect_8_128x1: Direct, Int8, MicroTiles<128, 1, STEP_TILES>;
                    detect_8_64x1: Direct, Int8, MicroTiles<64, 1, STEP_TILES>;
                    detect_8_32x1: Direct, Int8, MicroTiles<32, 1, STEP_TILES>;
                    detect_8_16x16: Direct, Int8, MicroTiles<16, 16, STEP_TILES>;
                    detect_8_1x32: Direct, Int8, MicroTiles<1, 32, STEP_TILES>;
                    detect_8_1x64: Direct, Int8, MicroTiles<1, 64, STEP_TILES>;
                    detect_1_128x1: Direct, Int8, MicroTiles<128, 1, STEP_BITS>;
                    detect_1_64x1: Direct, Int8, MicroTiles<64, 1, STEP_BITS>;
                    detect_1_32x1: Direct, Int8, MicroTiles<32, 1, STEP_BITS>;
                    detect_1_16x16: Direct, Int8, MicroTiles<16, 16, STEP_BITS>;
                    detect_1_1x32: Direct, Int8, MicroTiles<1, 32, STEP_BITS>;
                    detect_1_1x64: Direct, Int8, MicroTiles<1, 64, STEP_BITS>;
                    detect_pack_128x1: Direct, F16, MicroTiles<128, 1, STEP_PACK>;
                    detect_pack_64x1: Direct, F16, MicroTiles<64, 1, STEP_PACK>;
                    detect_pack_32x1: Direct, F16, MicroTiles<32, 1, STEP_PACK>;
                    detect_pack_32_128x1: Direct, F32, MicroTiles<128, 1, STEP_PACK>;
                    detect_pack_32_64x1: Direct, F32, MicroTiles<64, 1, STEP_PACK>;
                    detect_pack_32_32x1: Direct, F32, MicroTiles<32, 1, STEP_PACK>;
                    detect_lengths: Direct, F32, DetectLengths;
                    detect_choices: Direct, F32, DetectChoices;
                }
                channels "channels" ChannelsParams Detection {
                    channels_mark_16: Direct, F16, MarkChannels;
                    channels_pack_16: Direct, F16, PackChannels;
                }
                sample "sample" SampleParams Detection {
                    sample_16: Direct, F16, SampleBox;
                }
                live_rows "live_rows" LiveRowsParams Live {
                    live_rows_pack_f16: Direct, F16, PackRows;
                    live_rows_pack_bf16: Direct, Bf16, PackRows;
                    live_rows_norm_f16: Direct, F16, NormRows;
                    live_rows_norm_bf16: Direct, Bf16, NormRows;
                }
                transpose "transpose" TransposeParams Own {
                    transpose_16: Direct, F16, TransposeTile;
                }
                route "route" RouteParams Own {
                    route_count: Direct, F32, RouteCount;
                    route_place: Direct, F32, RoutePlace;
                    route_sum_f16: Direct, F16, RouteSum;
                    route_sum_bf16: Direct, Bf16, RouteSum;
                    route_gradient_f16: Direct, F16, RouteGradient;
                    route_gradient_bf16: Direct, Bf16, RouteGradient;
                    route_gate_f16: Direct, F16, RouteGate;
                    route_gate_bf16: Direct, Bf16, RouteGate;
                    route_gate_gradient_f16: Direct, F16, RouteGateGradient;
                    route_gate_gradient_bf16: Direct, Bf16, RouteGateGradient;
                }
                router "router" RouterParams Own {
                    router_choose_f32: Direct, F32, RouterChoose;
                    router_choose_f16: Direct, F16, RouterChoose;
                    router_choose_bf16: Direct, Bf16, RouterChoose;
                    router_gradient_f32: Direct, F32, RouterGradient;
                    router_gradient_f16: Direct, F16, RouterGradient;
                    router_gradient_bf16: Direct, Bf16, RouterGradient;
                }
            }
        }
    };
}

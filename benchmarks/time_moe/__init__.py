"""Parts of `gpu_time_moe`: what is measured, the two ways, and a file for what is asked of them."""

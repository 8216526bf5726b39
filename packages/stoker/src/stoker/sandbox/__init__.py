"""A script that cannot change the user's files: by an overlay of the disk, or by Landlock and a mirror of its folders.

The process that starts a script uses `Sandbox`, the process of the script `enter`. Inside the mirror of Landlock,
`mirrored` and `original` translate between the paths of a file, and `refusal` explains a write that was refused.
Other packages use these names alone.
"""

from stoker.sandbox.landlock import mirrored as mirrored
from stoker.sandbox.landlock import original as original
from stoker.sandbox.landlock import refusal as refusal
from stoker.sandbox.overlay import end_with_parent as end_with_parent
from stoker.sandbox.sandbox import CHOICES as CHOICES
from stoker.sandbox.sandbox import VARIABLE as VARIABLE
from stoker.sandbox.sandbox import Sandbox as Sandbox
from stoker.sandbox.sandbox import SandboxMode as SandboxMode
from stoker.sandbox.sandbox import enter as enter

from tailrace.base.extras import require_extra

require_extra("serve")

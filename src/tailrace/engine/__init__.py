from tailrace.extras import needs

needs("serve")
